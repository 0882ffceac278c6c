#!/bin/bash
# mut.sh NAME SHAPE SED
cd /tmp/wt/cube/target/scratch/emu/lin; M=$PWD/mut/$1; rm -rf $M; mkdir -p $M/cache; cp rt.h rt.o $M/
R=$(PATH=$PWD/wrap:$PATH MUT="$3" EMU=$M ./emu table 0 1 $2 2>&1 | grep -oE 'bad, first: .{0,330}|failed [0-9]+|SUMMARY.*' | sed 's/trike_cube::linear::kernels:://; s#/tmp/wt/cube/target/scratch/emu/lin/##g' | tr '\n' '|' | cut -c1-500)
echo "== $1: $(ls $M/nochange 2>/dev/null) $R"
