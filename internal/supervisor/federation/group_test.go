package federation

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestGroupOfCutOffRegion: the group fault's state is UNKNOWN until the region is back.
func TestGroupOfCutOffRegion(t *testing.T) {
	p := newParent(t)
	west := newChild(t, "west", 0)
	west.change("n0-0-0", lofamov1.State_NORMAL)
	value, err := proto.Marshal(view.StoredGroup(awareness.GroupStatus{
		ID: "row/X/0,0", Kind: awareness.GroupRow, State: fault.Failed, Cause: fault.CauseNode, Of: 2, Since: time.Unix(1000, 0),
		Members: []fault.NodeID{"n0-0-0", "n1-0-0"},
	}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := west.w.Commit(t.Context(), store.Batch{Puts: []store.KV{{Key: store.GroupKey("row/X/0,0"), Value: value}}}); err != nil {
		t.Fatal(err)
	}
	west.connect(p)
	shows := func(want fault.State) {
		t.Helper()
		eventually(t, "the group fault to be "+want.String(), func() bool {
			m, err := p.engine.Map(t.Context())
			return err == nil && len(m.Groups) == 1 && m.Groups[0].ID == "west/row/X/0,0" && m.Groups[0].State == want
		})
		snap, err := Copy{p.store}.MapNow(t.Context())
		if err != nil || len(snap.Groups) != 1 || snap.Groups[0].GetState() != lofamov1.State(want) {
			t.Errorf("the copy: %v, %v", snap.Groups, err)
		}
	}
	p.present("west")
	shows(fault.Failed)
	explained := func(want string) {
		t.Helper()
		if x, err := p.engine.ExplainGroup(t.Context(), "west/row/X/0,0"); err != nil || !strings.Contains(x.Summary, want) ||
			len(x.Members) != 2 {
			t.Errorf("explained: %+v, %v", x, err)
		}
	}
	explained("as reported by region west")
	if _, err := p.engine.ExplainGroup(t.Context(), "row/X/0,0"); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("explained: %v", err)
	}
	west.stop()
	p.cutOff("west")
	shows(fault.Unknown)
	explained("no message arrives from region west")
	p.lead() // another leader reads it from the store
	shows(fault.Unknown)
	west.connect(p)
	p.present("west")
	shows(fault.Failed)
}
