package failpoint

import (
	"os/exec"
	"strings"
	"testing"
)

func TestParseAction(t *testing.T) {
	for a := Drop; a <= Hold; a++ {
		got, err := ParseAction(a.String())
		if err != nil || got != a {
			t.Errorf("%s reads as %s, %v", a, got, err)
		}
	}
	for _, s := range []string{"", "pass", "Drop", "explode"} {
		if _, err := ParseAction(s); err == nil || !strings.Contains(err.Error(), "want drop") {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// TestPointCostsNothingInRelease: in a released program a point costs nothing.
func TestPointCostsNothingInRelease(t *testing.T) {
	out, err := exec.Command("go", "build", "-gcflags=-m", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, f := range []string{"Hit", "Packet", "Mount", "Live", "ArmAtStart"} {
		if !strings.Contains(string(out), "can inline "+f) {
			t.Errorf("%s is not inlined:\n%s", f, out)
		}
	}
}
