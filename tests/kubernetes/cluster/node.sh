#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Becomes a machine of a cluster: namespaces of its own over a Debian. node.sh DEBIAN STATE PROGRAM
# Run by `unshare --pid --fork --kill-child --net --mount --uts --ipc`; who kills it ends the machine.
# Of the environment: NODE, ADDRESS, PODS (its pods' network), CGROUP.
set -eu
debian=$1 state=$2 program=$3
first=10.200.0.1
mount --make-rprivate /
mount --bind "$debian" "$debian"
cd "$debian"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount -t tmpfs -o mode=755 dev dev
for name in null zero full random urandom tty; do
  touch "dev/$name"
  mount --bind "/dev/$name" "dev/$name"
done
touch dev/kmsg
mount --bind /dev/null dev/kmsg # the kubelet looks there for processes that the machine killed
mkdir -p dev/pts dev/shm dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs shm dev/shm
mount -t tmpfs -o mode=755 run run
mkdir -p k
mount --bind "$state" k
for name in kubelet containerd cni; do
  mkdir -p "var/lib/$name"
  # Images stay there for the next cluster; the first machine has them where Debian has them.
  if [ "$ADDRESS" != $first ]; then
    mkdir -p "var/lib/$NODE/$name"
    mount --bind "var/lib/$NODE/$name" "var/lib/$name"
  fi
done
# The kubelet would set these for the whole machine: it sees files that hold what it wants.
mkdir -p "$state/sysctl"
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
  kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  name=${setting%%=*}
  file=$state/sysctl/${name//\//_}
  echo "${setting##*=}" > "$file"
  mount --bind "$file" "proc/sys/$name"
done
hostname "$NODE"
ip link set lo up
if [ "$ADDRESS" = $first ]; then
  # A pair instead of a dummy device, which small kernels lack.
  ip link add d0 type veth peer name d1
  ip link set d1 up
  ip addr add "$ADDRESS/24" dev d0
  ip link set d0 up
  ip route add default dev d0
else
  until ip link show uplink > /dev/null 2>&1; do sleep 0.1; done # whose other end the first one has
  ip addr add "$ADDRESS/32" dev uplink
  ip link set uplink up
  ip route add $first dev uplink
  ip route add default via $first dev uplink
fi
echo 1 > /proc/sys/net/ipv4/ip_forward
mkdir -p .old
pivot_root . .old
umount -l /.old
mkdir -p /tmp
exec bash "/k/$program"
