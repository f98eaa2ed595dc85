package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/dnp"
	"github.com/lofamo/lofamo/internal/agent/storage"
)

// A person at the node sees the mask and sets the node's own part. It is on disk before the answer, the neighbour
// sees it, and it survives a restart. An error for an invalid request names the field.
func TestPersonsMaskSurvivesRestart(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 3, Y: 1, Z: 1}, nil)
	at1 := grid.Coord{X: 1}
	for _, c := range []grid.Coord{at0, at1} {
		n.start(c, fault.HalfHost)
		n.start(c, fault.HalfDNP)
	}
	n.super.awaitState(host0, "n0-0-0", fault.Link(grid.XPlus), fault.Normal, fault.KindSelf)
	dir := n.cfgs[at0].StateDir
	info, err := os.Stat(filepath.Join(dir, dnp.MaskSock))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v: want the owner's alone", info.Mode(), err)
	}
	st, err := dnp.AskMask(t.Context(), dir, nil)
	if err != nil || len(st.Own)+len(st.Unused) > 0 || !slices.Equal(st.Links, []string{"X+", "X-"}) {
		t.Fatalf("%+v, %v", st, err)
	}
	st, err = dnp.AskMask(t.Context(), dir, &dnp.MaskRequest{Mask: []string{"X+"}, Reason: "a bad cable"})
	if want := []string{"X+"}; err != nil || !slices.Equal(st.Own, want) || !slices.Equal(st.Unused, want) {
		t.Fatalf("masked: %+v, %v", st, err)
	}
	kept, err := storage.MaskOrders().Load(dir)
	if want := (chanmask.State{Own: chanmask.All, Held: chanmask.Mask(0).With(grid.XPlus, true), Ordered: chanmask.All}); err != nil ||
		kept != want {
		t.Errorf("told and not kept: %+v, %v", kept, err)
	}
	awaitMask(t, n.cfgs[at1].StateDir, "the neighbour sees it", func(st dnp.MaskStatus) bool {
		return slices.Equal(st.Neighbours, []string{"X-"}) && slices.Equal(st.Unused, []string{"X-"}) && len(st.Own)+len(st.InForce) == 0
	})
	for want, in := range map[string]dnp.MaskRequest{
		"no directions":              {},
		"reason: given 0 bytes":      {Mask: []string{"X-"}},
		"reason: given 201 bytes":    {Unmask: []string{"X+"}, Reason: strings.Repeat("x", 201)},
		`direction "up"`:             {Mask: []string{"up"}, Reason: "why"},
		"Y+: this node has no such":  {Mask: []string{"Y+"}, Reason: "why"},
		"X-: given twice":            {Mask: []string{"X-"}, Unmask: []string{"X-"}, Reason: "why"},
		"no link of this node would": {Mask: []string{"X-"}, Reason: "why"},
	} {
		if _, err := dnp.AskMask(t.Context(), dir, &in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v: want %q", in, err, want)
		}
	}
	st, err = dnp.AskMask(t.Context(), dir, &dnp.MaskRequest{Mask: []string{"X-"}, Reason: "why", Force: true})
	if err != nil || !slices.Equal(st.Own, []string{"X+", "X-"}) {
		t.Errorf("forced: %+v, %v", st, err)
	}
	if st, err = dnp.AskMask(t.Context(), dir, &dnp.MaskRequest{Unmask: []string{"X-"}}); err != nil || !slices.Equal(st.Own, []string{"X+"}) {
		t.Errorf("taken back: %+v, %v", st, err)
	}
	n.halt(at0, fault.HalfDNP)
	if _, err := dnp.AskMask(t.Context(), dir, nil); err == nil || !strings.Contains(err.Error(), "not running") {
		t.Errorf("without a DNP half: %v", err)
	}
	n.start(at0, fault.HalfDNP)
	awaitMask(t, dir, "it holds over a restart", func(st dnp.MaskStatus) bool { return slices.Equal(st.Own, []string{"X+"}) })
}

// awaitMask polls a half until its answer fits. Heartbeats, or a start, must come first, and cause no event here.
func awaitMask(t *testing.T, dir, what string, fits func(dnp.MaskStatus) bool) {
	t.Helper()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(bound); ; <-again.C {
		st, err := dnp.AskMask(t.Context(), dir, nil)
		switch {
		case err == nil && fits(st):
			return
		case time.Now().After(end):
			t.Fatalf("%s: not within %s: %+v, %v", what, bound, st, err)
		}
	}
}
