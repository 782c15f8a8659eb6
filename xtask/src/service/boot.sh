# Becomes PID 1 of a Debian that ends with its PID namespace. Run in new mount, PID, IPC, UTS and cgroup namespaces.
# $1 is the root file system, which is not changed; $2 is an empty folder for what changes.
set -eu
mount --make-rprivate /
mkdir "$2/upper" "$2/overlay" "$2/root"
mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/overlay" overlay "$2/root"
cd "$2/root"
mount -t proc proc proc
# Otherwise systemd would set this machine's.
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty; do
    touch "dev/$node"
    mount --bind "/dev/$node" "dev/$node"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
hostname flow-agent-test
mkdir .old
pivot_root . .old
umount -l .old
rmdir .old
exec env -i container=flow-agent-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --log-target=journal systemd.unit=multi-user.target
