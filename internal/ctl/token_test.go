package ctl

import (
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/ctl/ctltest"
)

// TestTokenForAnyNameSaysThatItsNodesAreUnmanaged: standard output has the token alone.
func TestTokenForAnyNameSaysThatItsNodesAreUnmanaged(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Healthy(t, "2x2x2"))
	r.Server.Enrolment.Token = "lofamo1.id.secret.pin"
	for _, c := range []struct {
		flags []string
		warns bool
	}{
		{nil, true},
		{[]string{"--names", "gpu-*"}, false},
		{[]string{"--node", "n0-0-0"}, false},
	} {
		got := run(t, nil, r.Flags(append([]string{"token", "create"}, c.flags...)...)...)
		if got.code != 0 || got.stdout != "lofamo1.id.secret.pin\n" {
			t.Errorf("%q: %+v, want the token", c.flags, got)
		}
		if warns := strings.Contains(got.stderr, "lofamoctl label NODE lofamo.io/managed=true"); warns != c.warns {
			t.Errorf("%q: standard error %q; want the command that makes nodes managed: %v", c.flags, got.stderr, c.warns)
		}
	}
}
