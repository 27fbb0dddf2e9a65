"""`akv demo`: the main job on one machine, as a story of seven promises that can be broken (docs/demo.md)."""
