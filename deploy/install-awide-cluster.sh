#!/usr/bin/env bash
# Installs the cluster service of a storage or witness host, or takes it off again.
#
# It can be run again and again: what is right stays, what is old is replaced, and settings that are there
# are never changed. See docs/install.md.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
readonly program=${0##*/}
readonly home=/opt/awide
readonly config=/etc/adp/awide-cluster
readonly agent_config=/etc/akv
readonly links=/usr/local/bin
readonly units=/etc/systemd/system
readonly user=awide
readonly commands=(awide-cluster clustercli akv-card-exporter akv-ping-exporter akv-witness-exporter akv-gateway
  akv-dataplane akv-softcard akv-nvme akv-agent)
# What the agent keeps. Weights (/var/lib/akv/weights) are the operator's and are never removed.
readonly agent_dirs=(/var/lib/akv/agent /var/lib/akv/engines)
readonly data_dirs=(/var/lib/etcd /var/lib/awide-cluster /var/log/adp /srv/docker/awide/monitoring)

action=install
root=
dry_run=0
witness=0
start=1
purge=0
insecure=0
host=
address=127.0.0.1
venv=
from=
changed=0
units_changed=0

usage() {
  cat <<END
Usage: $program [install|uninstall] [options]

  --from PATH            install the program from this source tree or wheel
                         (default: the tree that this script lies in)
  --venv DIR             use the programs of this virtual environment instead of making $home/venv
  --host NAME            name of this host in the cluster (default: the machine's)
  --address ADDRESS      literal address to serve on and to tell others (default: 127.0.0.1)
  --witness              a host without cards: the witness exporter takes the card exporter's place
  --insecure-loopback    serve without certificates, on loopback addresses only
  --no-start             don't enable and start the services
  --root DIR             place the files below DIR, start nothing, make no user; needs --venv
  --dry-run              show what would be done, and do nothing
  --purge                with uninstall: also settings, state, etcd's data and logs
  -h, --help             show this

Exit codes: 0 done, 1 failed, 2 wrong usage.
END
}

# fail CODE MESSAGE...
fail() {
  local code=$1 && shift
  echo "$program: $*" >&2
  exit "$code"
}
say() { echo "$*"; }

# act DESCRIPTION COMMAND...: says what is done, and does it unless --dry-run.
act() {
  local what=$1 && shift
  changed=1
  if ((dry_run)); then
    say "would $what"
    return
  fi
  say "$what"
  "$@"
}

# ---- options ------------------------------------------------------------------------------------------
value_of() { if [ $# -lt 2 ] || [ -z "$2" ]; then fail 2 "$1 needs a value"; fi; }

parse() {
  while [ $# -gt 0 ]; do
    case $1 in
      install | uninstall) action=$1 ;;
      --dry-run) dry_run=1 ;;
      --witness) witness=1 ;;
      --insecure-loopback) insecure=1 ;;
      --no-start) start=0 ;;
      --purge) purge=1 ;;
      --from | --venv | --host | --address | --root)
        value_of "$@"
        printf -v "${1#--}" %s "$2"
        shift
        ;;
      -h | --help)
        usage
        exit 0
        ;;
      *) fail 2 "$1 is not an option; $program --help shows them" ;;
    esac
    shift
  done
}

is_loopback() { [[ $address =~ ^(127\.|::1$) ]]; }

check_options() {
  [[ $root == "" || $root == /* ]] || fail 2 "--root $root is not an absolute path"
  root=${root%/}
  [[ $purge == 0 || $action == uninstall ]] || fail 2 "--purge goes with uninstall only"
  [ "$action" = install ] || return 0
  [[ $address =~ ^[0-9a-fA-F.:]+$ ]] || fail 2 "--address $address is not a literal IPv4 or IPv6 address"
  [[ $host == "" || $host =~ ^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$ ]] ||
    fail 2 "--host $host is not a host name: use letters, digits, '.', '-' and '_'"
  if ((insecure)) && ! is_loopback; then
    fail 2 "--insecure-loopback serves on loopback addresses only, and --address is $address"
  fi
  [[ $root == "" || $venv != "" ]] || fail 2 "--root places files only: name the programs' --venv too"
  [[ $venv == "" || $venv == /* ]] || fail 2 "--venv $venv is not an absolute path"
  [[ $venv == "" || $from == "" ]] || fail 2 "--venv brings the programs, so --from has no use: give one of them"
}

check_machine() {
  [ -n "$root" ] || ((dry_run)) || [ "$(id -u)" = 0 ] || fail 1 "run it as root (or with --root DIR, or --dry-run)"
  [ "$action" = install ] || return 0
  if [ -n "$venv" ]; then
    local name
    for name in "${commands[@]}"; do
      [ -x "$venv/bin/$name" ] || fail 1 "$venv has no program $name: install the project there first"
    done
  elif ! python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    fail 1 "Python 3.11 or newer with venv is needed: apt-get install python3-venv"
  fi
}

with_systemd() { [ -z "$root" ] && [ -d /run/systemd/system ]; }

# ---- files --------------------------------------------------------------------------------------------
# place SOURCE TARGET MODE: makes TARGET what SOURCE is; the rename makes it all or nothing.
place() {
  local source=$1 target=$root$2 mode=$3
  if [ -f "$target" ] && cmp -s "$source" "$target"; then
    say "unchanged $2"
    return
  fi
  case $2 in "$units"/*) units_changed=1 ;; esac
  local verb=create
  [ ! -e "$target" ] || verb=update
  act "$verb $2" put_file "$source" "$target" "$mode"
}
put_file() {
  mkdir -p "$(dirname "$2")"
  install -m "$3" "$1" "$2.new"
  mv -f "$2.new" "$2"
}

# keep_or_create SOURCE TARGET: a file that is the operator's once it is there.
keep_or_create() {
  if [ -e "$root$2" ]; then
    say "kept $2"
    return
  fi
  act "create $2" put_file "$1" "$root$2" 0640
}

link() {
  local name=$1 wanted=$2/bin/$1
  if [ "$(readlink "$root$links/$name" 2>/dev/null)" = "$wanted" ]; then
    say "unchanged $links/$name"
    return
  fi
  if [ -e "$root$links/$name" ] && [ ! -L "$root$links/$name" ]; then
    fail 1 "$links/$name is there and is not a link of this installation: move it away first"
  fi
  act "link $links/$name -> $wanted" put_link "$wanted" "$root$links/$name"
}
put_link() {
  mkdir -p "$(dirname "$2")"
  ln -sfn "$1" "$2"
}

directory() {
  local path=$1 mode=$2
  if [ -d "$root$path" ]; then
    say "unchanged $path/"
  else
    act "create $path/" install -d -m "$mode" "$root$path"
  fi
  if [ -z "$root" ] && ((!dry_run)) && [ "$(stat -c %U "$path")" != "$user" ]; then
    act "give $path/ to $user" chown -R "$user:$user" "$path"
  fi
}

remove() {
  local path=$1
  if [ -e "$root$path" ] || [ -L "$root$path" ]; then
    act "remove $path" rm -rf "$root$path"
  fi
}

# ---- install ------------------------------------------------------------------------------------------
# What the programs were installed from, so that a second run installs nothing.
source_digest() {
  if [ -f "$1" ]; then
    sha256sum <"$1"
  else
    (cd "$1" && find pyproject.toml CMakeLists.txt clustercli controlplane dataplane integration bench protos tools/protogen.py -type f \
      -not -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum)
  fi
}

install_program() {
  [ -z "$venv" ] || return 0
  venv=$home/venv
  [ -n "$from" ] || from=$(dirname "$here")
  [ -f "$from" ] || [ -f "$from/pyproject.toml" ] ||
    fail 1 "$from is neither a wheel nor the project's source tree: name one with --from"
  local digest
  digest=$(source_digest "$from")
  if [ "$(cat $home/source.sha256 2>/dev/null)" = "$digest" ]; then
    say "unchanged $venv"
    return
  fi
  act "install the programs from $from into $venv" put_program "$digest"
}
put_program() {
  mkdir -p $home
  rm -f $home/source.sha256 # a run that is broken off is taken up again by the next one
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade --force-reinstall "$from"
  echo "$1" >$home/source.sha256
}

install_user() {
  place "$here/sysusers-awide.conf" /usr/lib/sysusers.d/awide.conf 0644
  [ -z "$root" ] || return 0
  id "$user" >/dev/null 2>&1 ||
    act "create the user $user" useradd --system --home-dir /var/lib/awide-cluster --shell /usr/sbin/nologin "$user"
}

settings_file() {
  local name=${host:-$(uname -n)}
  cat <<END
# Settings of this host's cluster service and exporters (docs/cluster.md has all of them).
AWC_HOST=$name
AWC_ADDRESS=$address
AWC_WITNESS=$witness
AWC_API_PORT=5000
AWC_EXPORTER_PORT=7891
AWC_PING_PORT=9427
AWC_DATA_DIR=/var/lib/etcd
AWC_STATE_DIR=/var/lib/awide-cluster
AWC_LOG_DIR=/var/log/adp
AWC_MONITORING_DIR=/srv/docker/awide/monitoring
# The command that lists this host's cards as JSON.
AWC_CARD_CLI="akv-softcard list --json"
END
  if ((insecure)); then
    echo "# Without certificates, on loopback addresses only."
    echo "AWC_SECURITY=insecure-loopback"
  else
    echo "# The exporters serve HTTPS with the host's certificate (exporters.env says so to them)."
    echo "AWC_EXPORTER_TLS=1"
  fi
}

exporters_file() {
  echo "# Flags of the exporters. With --tls-dir they serve once the host has joined, to hosts of the cluster only."
  if ((insecure)); then echo "AWC_EXPORTER_FLAGS="; else echo "AWC_EXPORTER_FLAGS=--tls-dir /var/lib/awide-cluster/pki"; fi
}

install_settings() {
  local written
  written=$(mktemp)
  settings_file >"$written"
  keep_or_create "$written" "$config/awide-cluster.env"
  rm -f "$written"
  keep_or_create "$here/settings/adpcli_compat.env" "$config/adpcli_compat.env"
  # The exporters' own file: the cluster service refuses keys that are not its own.
  keep_or_create <(exporters_file) "$config/exporters.env"
  [ -n "$root" ] || ((dry_run)) || chown -R "root:$user" "$config"
}

# The node agent's settings; what the script can't know is the operator's to fill in.
agent_file() {
  sed -e "s/^node_id: [^ ]*/node_id: ${host:-$(uname -n)}/" -e "s/^address: [^ ]*/address: $address/" \
    "$here/settings/agent.yaml"
}
install_agent_settings() { keep_or_create <(agent_file) "$agent_config/agent.yaml"; }

install_units() {
  local file
  for file in "$here"/systemd/*.service; do
    place "$file" "$units/${file##*/}" 0644
  done
}

# Settings that are there say whether the host is a witness, whatever this run was told.
heed_settings() {
  local file=$root$config/awide-cluster.env wanted=$witness
  [ -r "$file" ] || return 0
  witness=$(sed -n -E "s/^[[:space:]]*(export )?AWC_WITNESS=[\"']?([01]).*/\2/p" "$file")
  witness=${witness:-0}
  if ((wanted && !witness)); then
    say "AWC_WITNESS is 0 in $config/awide-cluster.env, and settings are yours: set it to 1 there and run this again"
  fi
}

services() {
  echo awide-cluster.service akv-ping-exporter.service
  if ((witness)); then echo akv-witness-exporter.service; else echo akv-card-exporter.service; fi
}
# The exporter that this host does not have: both would want the same port.
other_exporter() { if ((witness)); then echo akv-card-exporter.service; else echo akv-witness-exporter.service; fi; }

start_services() {
  with_systemd || return 0
  ((!units_changed)) || act "reload systemd" systemctl daemon-reload
  ((start)) || return 0
  local name
  # The agent waits for its settings and certificate; once an operator has enabled it, it is kept up to date.
  if ((changed)) && systemctl is-enabled --quiet akv-agent.service 2>/dev/null; then
    act "restart akv-agent.service" systemctl restart akv-agent.service
  fi
  name=$(other_exporter)
  if systemctl is-enabled --quiet "$name" 2>/dev/null; then
    act "stop and disable $name" systemctl disable --quiet --now "$name"
  fi
  for name in $(services); do
    if ! systemctl is-enabled --quiet "$name" 2>/dev/null; then act "enable $name" systemctl enable --quiet "$name"; fi
    if ((changed)) || ! systemctl is-active --quiet "$name"; then act "restart $name" systemctl restart "$name"; fi
  done
}

# Bash loads it for `clustercli` when it is first completed.
install_completion() {
  local written
  written=$(mktemp)
  if ((dry_run)) && [ ! -x "$venv/bin/clustercli" ]; then
    say "would create /usr/share/bash-completion/completions/clustercli"
  elif _CLUSTERCLI_COMPLETE=source_bash "$venv/bin/clustercli" >"$written" && [ -s "$written" ]; then
    place "$written" /usr/share/bash-completion/completions/clustercli 0644
  else
    rm -f "$written"
    fail 1 "$venv/bin/clustercli gives no shell completion: is it complete?"
  fi
  rm -f "$written"
}

install_all() {
  install_program
  local name
  for name in "${commands[@]}"; do link "$name" "$venv"; done
  install_user
  for name in "${data_dirs[@]}"; do directory "$name" 0750; done
  install_settings
  heed_settings
  install_agent_settings
  install_units
  install_completion
  start_services
  if ((!changed)); then
    say "nothing to do: the installation is complete"
  elif ((!dry_run)); then
    say "done; next: clustercli doctor, then clustercli create_cluster on the first host, add_node on others"
    say "node agent: fill in $agent_config/agent.yaml, then systemctl enable --now akv-shards akv-agent"
  fi
}

# ---- uninstall ----------------------------------------------------------------------------------------
# Of a template all instances are stopped; what enabled them goes with the template's own links.
stop_unit() {
  systemctl stop "${1/@/@*}"
  systemctl disable --quiet "$1"
}

uninstall_all() {
  local file name
  for file in "$here"/systemd/*.service; do
    name=${file##*/}
    if with_systemd && [ -e "$units/$name" ]; then
      act "stop and disable $name" stop_unit "$name"
    fi
    remove "$units/$name"
  done
  if with_systemd && ((changed)); then act "reload systemd" systemctl daemon-reload; fi
  for name in "${commands[@]}"; do
    [ ! -L "$root$links/$name" ] || remove "$links/$name"
  done
  remove /usr/share/bash-completion/completions/clustercli
  remove /usr/lib/sysusers.d/awide.conf
  remove "$home"
  if ((purge)); then
    for name in "$config" "$agent_config/agent.yaml" "$agent_config/agent" "${data_dirs[@]}" "${agent_dirs[@]}"; do
      remove "$name"
    done
    remove /var/cache/awide
  elif [ -d "$root$config" ]; then
    say "kept $config, $agent_config, ${data_dirs[*]} ${agent_dirs[*]} (uninstall --purge removes them)"
  fi
  ((changed)) || say "nothing to do: it is not installed"
}

parse "$@"
check_options
check_machine
if [ "$action" = install ]; then install_all; else uninstall_all; fi
