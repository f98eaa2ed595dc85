package fault

import (
	"slices"
	"testing"
)

func TestImageNamesAreKnown(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(imageNames) || !slices.IsSorted(commonWords) {
		t.Error("the names are not sorted")
	}
	for name, want := range map[string][2]bool{ // an image's, loopback
		"localhost": {true, true}, "localhost.localdomain": {true, true}, "LocalHost": {true, true}, "localhost-live": {true, true},
		"localhost6": {true, true}, "ip6-localhost": {true, true}, "ubuntu": {true, false}, "Ubuntu.local": {true, false},
		"debian.example.org": {true, false}, "raspberrypi": {true, false}, "": {true, false}, "(none)": {true, false}, "node": {true, false},
		"node1": {}, "n1.ubuntu.example.org": {}, "gpu-7": {}, "local-7": {}, "ip-10-0-0-7": {}, "debian-3": {}, "myhost": {},
		"debian12": {true, false}, "Debian12.local": {true, false}, "debian-12": {}, "ubuntu2204": {true, false}, "ubuntu-22-04": {true, false},
		"rocky9": {true, false}, "centos7": {true, false}, "almalinux9": {true, false}, "fedora-server": {true, false}, "rocky2": {},
		"ubuntu-22": {}, "instance": {true, false}, "server": {true, false}, "server.localdomain": {true, false}, "server.local": {true, false},
		"server.": {true, false}, "server.example.com": {}, "node.cluster": {}, "instance-1": {},
	} {
		if got := [2]bool{IsImageName(name), IsLoopbackName(name)}; got != want {
			t.Errorf("%q: an image's, loopback: %v: want %v", name, got, want)
		}
	}
}
