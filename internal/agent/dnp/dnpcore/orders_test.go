package dnpcore

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestLostOrdersReachLog: a half that cannot read its stored orders says once why.
func TestLostOrdersReachLog(t *testing.T) {
	for name, tc := range map[string]struct {
		stored []byte
		lost   error
		want   string // "": nothing is lost
	}{
		"first start":     {nil, nil, ""},
		"damaged":         {[]byte("garbage"), nil, `7 bytes that begin with "garb"`},
		"unreadable disk": {nil, errors.New("input/output error"), "input/output error"},
	} {
		w := newMesh(t, "1x1x1", 1, nil)
		cfg := w.cfg
		cfg.Topo = w.nodes[0].m.cfg.Topo
		cfg.StoredOrders, cfg.OrdersLost = tc.stored, tc.lost
		m, err := New(cfg, w.now, 8)
		if err != nil {
			t.Fatal(err)
		}
		notes := slices.Clone(m.Step(w.now, Tick{}).Notes)
		for range 3 {
			w.now = w.now.Add(w.cfg.Periods.TWrite)
			notes = append(notes, m.Step(w.now, Tick{}).Notes...)
		}
		notes = slices.DeleteFunc(notes, func(n Note) bool { return n.Kind != NoteUnreadable })
		if tc.want == "" && len(notes) > 0 || tc.want != "" && (len(notes) != 1 || !strings.Contains(notes[0].Text, tc.want)) {
			t.Errorf("%s: %v: want %q", name, notes, tc.want)
		}
	}
}
