package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/agent/dnp"
)

// The command refuses invalid arguments before it contacts a half, and names a half that does not run.
func TestMaskCommandRefusesInvalidArguments(t *testing.T) {
	file := write(t, node(t), "")
	for _, c := range []struct {
		code int
		text string
		args []string
	}{
		{2, `direction "up"`, []string{"up"}},
		{2, "--reason: missing", []string{"X+"}},
		{2, "no direction", []string{"--unmask"}},
		{2, "no direction", []string{"--reason", "why"}},
		{2, "--output", []string{"-o", "yaml"}},
		{1, "DNP half is not running", nil},
		{1, "DNP half is not running", []string{"X+", "--reason", "why"}},
	} {
		var out, errs bytes.Buffer
		code := execute(t.Context(), append([]string{"mask", "--config", file}, c.args...), nil, &out, &errs)
		if code != c.code || !strings.Contains(errs.String(), c.text) || out.Len() > 0 {
			t.Errorf("%v: %d, %q, %q: want %d, %q", c.args, code, out.String(), errs.String(), c.code, c.text)
		}
	}
}

func TestMaskCommandPrintsMaskByOrigin(t *testing.T) {
	var b bytes.Buffer
	st := dnp.MaskStatus{Links: []string{"X+", "X-"}, Own: []string{"X+"}, Unused: []string{"X+", "X-"}, InForce: []string{"X+"},
		Neighbours: []string{"X-"}, Lost: true}
	if err := writeMask(&b, st, "table"); err != nil {
		t.Fatal(err)
	}
	const want = `LINKS                   X+ X-
CARRY NO MESSAGES       X+ X-
masked by this command  X+
by its diagnosis        none
by its configuration    none
by the supervisors      lost: the stored mask cannot be read, and the supervisors have sent none since
by the neighbours       X-
in force at this end    X+
`
	if b.String() != want {
		t.Errorf("%s\nwant\n%s", b.String(), want)
	}
	b.Reset()
	if err := writeMask(&b, st, "json"); err != nil || !strings.Contains(b.String(), `"unused": [`) {
		t.Errorf("%s, %v", b.String(), err)
	}
}
