// Package machine runs Kubernetes nodes on one computer without a container engine and
// without virtual machines: containerd, kubelet and kube-proxy, unmodified, and real
// containers. It needs root and Linux.
//
// A site is what one program of tests has for itself: processes, mounts, a network and
// nothing else. Main makes it and runs the program in it. The machines of a site are
// processes with namespaces of their own again, on one bridge; each has its own /run,
// /etc, /opt, /var/lib and /var/log, so that everything in it has its usual place.
//
// # Invariants
//
//   - Nothing of a site is visible outside of it, nor reaches the network of the computer:
//     the bridge, the routes, the rules of iptables and the mounts are those of namespaces.
//     What listens on addresses of the bridge is reached from the site alone.
//   - Settings of the kernel that are not of a namespace are read-only in a machine.
//   - A process that is started again by mistake ends: it has no role, and there is no site on
//     a site. All of a site has one limit of threads and memory.
//   - Files are below one directory, cgroups below one of each hierarchy. Both have the
//     process id of the program in their names.
//
// # Failure model
//
// A site ends with its program, and a machine with its site, however these end: the first
// process of each has a pipe to whoever started it, and ends when that is closed. The kernel
// then kills what is in its namespaces, containers included, and takes the namespaces down.
// Directories and cgroups are removed by Main, and what a killed program left of them by the
// next one. A machine that was stopped, which is as if it lost its power, starts again from
// its directory.
package machine
