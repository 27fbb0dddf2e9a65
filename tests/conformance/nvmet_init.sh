#!/bin/busybox sh
# First process of the guest: loads nvmet, exports two memory-backed namespaces, then runs what comes line by
# line over the second serial port. Each answer ends with a line "<rc CODE>".
/bin/busybox mkdir -p /proc /sys /dev /sbin /usr/bin /usr/sbin
/bin/busybox --install -s
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev
give_up() { echo "GUEST FAILED: $*"; poweroff -f; }
setting() { tr ' ' '\n' </proc/cmdline | sed -n "s/^lab\.$1=//p"; }

while read -r module; do
  case $module in
    */null_blk.ko) insmod "$module" nr_devices=0 ;;
    *) insmod "$module" ;;
  esac || give_up "$module"
done </modules/order
mount -t configfs none /sys/kernel/config || give_up configfs
ip link set lo up
ip addr add 10.0.2.15/24 dev eth0 && ip link set eth0 up && ip route add default via 10.0.2.2 || give_up network

target=/sys/kernel/config/nvmet
subsystem=$target/subsystems/$(setting nqn)
port=$target/ports/1
mkdir "$subsystem" && echo "$(setting serial)" >"$subsystem/attr_serial" || give_up subsystem
echo 1 >"$subsystem/attr_allow_any_host"
for nsid in 1 2; do
  disk=/sys/kernel/config/nullb/lab$nsid
  mkdir "$disk" && echo 1 >"$disk/memory_backed" && echo "$(setting megabytes)" >"$disk/size" &&
    echo 512 >"$disk/blocksize" && echo 0 >"$disk/irqmode" && echo 1 >"$disk/power" || give_up "disk $nsid"
  device=/dev/nullb$(cat "$disk/index")
  [ -b "$device" ] || device=/dev/lab$nsid
  mkdir "$subsystem/namespaces/$nsid" && echo -n "$device" >"$subsystem/namespaces/$nsid/device_path" &&
    echo 1 >"$subsystem/namespaces/$nsid/enable" || give_up "namespace $nsid"
done
mkdir "$port" && echo tcp >"$port/addr_trtype" && echo ipv4 >"$port/addr_adrfam" && echo 0.0.0.0 >"$port/addr_traddr" &&
  echo 4420 >"$port/addr_trsvcid" && ln -s "$subsystem" "$port/subsystems/" || give_up port

stty -F /dev/ttyS1 raw -echo
exec 3<>/dev/ttyS1
echo "GUEST READY $(uname -r)"
while read -r line <&3; do
  eval "$line" >&3 2>&1
  echo "<rc $?>" >&3
done
