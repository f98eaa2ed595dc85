package fault

import (
	"slices"
	"strings"
)

// imageNames are names that installers, images and firmware give to machines. They are sorted.
var imageNames = []string{
	"alma", "almalinux", "alpine", "amazonlinux", "amazonlinux2", "arch", "archiso", "archlinux", "armbian", "bananapi", "beaglebone",
	"broadcasthost", "buildroot", "centos", "changeme", "cirros", "clear-linux", "cloudimg", "computer", "coreos", "debian", "default",
	"default-hostname", "dietpi", "fcos", "fedora", "flatcar", "gentoo", "golden", "host", "hostname", "image", "install", "installer",
	"ip6-allnodes", "ip6-allrouters", "ip6-localhost", "ip6-localnet", "ip6-loopback", "jetson", "kali", "kvm", "linux", "live", "livecd",
	"loopback", "machine", "mariner", "minimal", "nixos", "node", "none", "odroid", "opensuse", "openwrt", "oracle", "oraclelinux", "orangepi",
	"packer", "pc", "photon", "pine64", "qemu", "raspberry", "raspberrypi", "raspbian", "redhat", "rescue", "rhel", "rockchip", "rocky",
	"rockylinux", "server", "setup", "slackware", "sles", "suse", "sysrescue", "systemrescue", "talos", "tegra-ubuntu", "template", "ubuntu",
	"ubuntu-desktop", "ubuntu-server", "unassigned", "unknown", "unnamed", "user", "vagrant", "virtual", "virtualbox", "vm", "vmware", "void",
}

// IsLoopbackName reports whether a name means the machine itself on every machine: localhost, localhost.localdomain, ip6-localhost and the
// like.
func IsLoopbackName(name string) bool {
	first := firstLabel(name)
	return strings.HasPrefix(first, "localhost") || first == "ip6-localhost" || first == "ip6-loopback" || first == "loopback"
}

// IsImageName reports whether a host's name is one that an image gives to many machines, with any domain. "(none)" is the kernel's.
func IsImageName(host string) bool {
	_, listed := slices.BinarySearch(imageNames, firstLabel(host))
	return listed || host == "" || host == "(none)" || IsLoopbackName(host)
}

// firstLabel returns the part of a host's name before its domain, in lower case.
func firstLabel(host string) string {
	first, _, _ := strings.Cut(strings.ToLower(host), ".")
	return first
}
