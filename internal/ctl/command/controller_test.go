package command

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

func TestControllerIsShownWithItsAge(t *testing.T) {
	ago := durationpb.New
	for name, tc := range map[string]struct {
		c    *lofamov1.ManagementController
		want []string
	}{
		"none": {nil, nil},
		"off": {&lofamov1.ManagementController{Finding: lofamov1.ControllerFinding_POWERED_OFF, Health: lofamov1.ControllerHealth_HEALTH_CRITICAL,
			Since: ago(3 * time.Minute), Age: ago(4 * time.Second), Sensors: []string{"CPU 1 97 °C: Critical", "Inlet 20 °C: OK"},
			Log: []string{"2026-01-01T00:00:00Z OK: boot", "2026-01-01T01:00:00Z Critical: PSU\x1b[31m 1"}},
			[]string{"powered off for 3m, read 4s ago, hardware critical (evidence, not a verdict)", "sensors: CPU 1 97 °C: Critical",
				"last event: 2026-01-01T01:00:00Z Critical: PSU·[31m 1"}},
		"silent": {&lofamov1.ManagementController{Finding: lofamov1.ControllerFinding_CONTROLLER_SILENT, Detail: "no route to host",
			Since: ago(time.Minute), Age: ago(time.Second), PowerFeedSuspected: true},
			[]string{"silent for 1m, read 1s ago: no route to host (evidence, not a verdict)",
				"hint: node and controller are both silent: check the power feed"}},
		"of a later version": {&lofamov1.ManagementController{Finding: 9, Since: ago(0), Age: ago(0)},
			[]string{"9 for 0s, read 0s ago (evidence, not a verdict)"}},
	} {
		if got := controllerLines(tc.c); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q: want %q", name, got, tc.want)
		}
	}
}

// TestNodeShowsWhetherKernelsDied: the verdicts on a node's kernels are shown without control characters, and none is shown if there is
// none.
func TestNodeShowsWhetherKernelsDied(t *testing.T) {
	n := &lofamov1.Node{HostKernel: &lofamov1.KernelVerdict{Why: "its kernel is dead\x1b"},
		DnpKernel: &lofamov1.KernelVerdict{Why: "it lives"}}
	want := [][]string{{"Host kernel", "its kernel is dead·"}, {"DNP kernel", "it lives"}}
	if got := nodeNotes(&App{}, n); !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := nodeNotes(&App{}, &lofamov1.Node{}); len(got) != 0 {
		t.Errorf("%q of a node without a verdict", got)
	}
}
