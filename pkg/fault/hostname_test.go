package fault

import (
	"slices"
	"testing"
)

func TestImageNamesAreKnown(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(imageNames) {
		t.Error("the names are not sorted")
	}
	for name, want := range map[string][2]bool{ // an image's, loopback
		"localhost": {true, true}, "localhost.localdomain": {true, true}, "LocalHost": {true, true}, "localhost-live": {true, true},
		"localhost6": {true, true}, "ip6-localhost": {true, true}, "ubuntu": {true, false}, "Ubuntu.local": {true, false},
		"debian.example.org": {true, false}, "raspberrypi": {true, false}, "": {true, false}, "(none)": {true, false}, "node": {true, false},
		"node1": {}, "n1.ubuntu.example.org": {}, "gpu-7": {}, "local-7": {}, "ip-10-0-0-7": {}, "debian-3": {}, "myhost": {},
	} {
		if got := [2]bool{IsImageName(name), IsLoopbackName(name)}; got != want {
			t.Errorf("%q: an image's, loopback: %v: want %v", name, got, want)
		}
	}
}
