package fault

import (
	"regexp"
	"slices"
	"strings"
)

// imageNames are names that installers, images and firmware give to machines, and commonWords those that people also give, which a domain
// makes a name of one machine. Both are sorted.
var (
	imageNames = []string{
		"alma", "almalinux", "alpine", "amazonlinux", "amazonlinux2", "arch", "archiso", "archlinux", "armbian", "bananapi", "beaglebone",
		"broadcasthost", "buildroot", "centos", "changeme", "cirros", "clear-linux", "cloudimg", "coreos", "debian", "debian-server",
		"default-hostname", "dietpi", "fcos", "fedora", "fedora-server", "flatcar", "gentoo", "ip6-allnodes", "ip6-allrouters",
		"ip6-localhost", "ip6-localnet", "ip6-loopback", "jetson", "kali", "livecd", "loopback", "mariner", "nixos", "odroid", "opensuse",
		"openwrt", "oracle", "oraclelinux", "orangepi", "packer", "photon", "pine64", "qemu", "raspberry", "raspberrypi", "raspbian",
		"redhat", "rhel", "rockchip", "rocky", "rockylinux", "slackware", "sles", "suse", "sysrescue", "systemrescue", "talos",
		"tegra-ubuntu", "ubuntu", "ubuntu-desktop", "ubuntu-server", "unassigned", "unnamed", "vagrant", "virtualbox",
	}
	commonWords = []string{
		"computer", "default", "golden", "host", "hostname", "image", "install", "installer", "instance", "kvm", "linux", "live", "machine",
		"minimal", "node", "none", "pc", "rescue", "server", "setup", "template", "unknown", "user", "virtual", "vm", "vmware", "void",
	}
)

// versioned matches the name of a distribution with its version, such as debian12 and ubuntu-22-04. Lower numbers count machines.
var versioned = regexp.MustCompile(`^((alma|almalinux|centos|debian|fedora|ol|oraclelinux|rhel|rocky|rockylinux)([7-9]|[1-4][0-9])|` +
	`ubuntu-?[0-9]{2}-?[0-9]{2})$`)

// IsLoopbackName reports whether a name means the machine itself on every machine: localhost, localhost.localdomain, ip6-localhost and the
// like.
func IsLoopbackName(name string) bool {
	first := firstLabel(name)
	return strings.HasPrefix(first, "localhost") || first == "ip6-localhost" || first == "ip6-loopback" || first == "loopback"
}

// IsImageName reports whether a host's name is one that an image gives to many machines. "(none)" is the kernel's.
func IsImageName(host string) bool {
	first := firstLabel(host)
	_, listed := slices.BinarySearch(imageNames, first)
	_, word := slices.BinarySearch(commonWords, first)
	return listed || word && !hasDomain(host) || versioned.MatchString(first) || host == "" || host == "(none)" || IsLoopbackName(host)
}

// hasDomain reports whether a host's name has a domain that somebody gave it.
func hasDomain(host string) bool {
	_, domain, _ := strings.Cut(strings.ToLower(host), ".")
	return domain != "" && domain != "local" && domain != "localdomain"
}

// firstLabel returns the part of a host's name before its domain, in lower case.
func firstLabel(host string) string {
	first, _, _ := strings.Cut(strings.ToLower(host), ".")
	return first
}
