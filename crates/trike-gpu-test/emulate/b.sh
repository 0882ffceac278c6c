#!/bin/bash
D=/tmp/wt/cube/target/debug/deps; cd /tmp/wt/cube/target/scratch/emu/lin
x() { echo "--extern $1=$D/lib$1-$2.rlib"; }
nice -n 10 rustc --edition 2024 -C opt-level=1 -C linker=g++ main.rs -o emu -L dependency=$D $(x cubecl 22999d962f9cb74e) $(x cubecl_cpp ce824314ef0c052a) $(x cubecl_common 9c48381ec36d401d) $(x cubecl_runtime fb59a7d6c0b6d39e) $(x cubecl_server 64248e7fcc6d4c72) $(x cubecl_environment 9c53fa1ed88e9ef0) $(x trike_trit 716f930c65e145a3) $(x trike_testkit b84026ec1f89d293) $(x trike_cube ce4dac4cfc20c8a5) $(x trike_gpu_test d64cd238afca69cd) 2>&1 | grep -E "^(error|warning: unused)" -A9 | head -${1:-60}
