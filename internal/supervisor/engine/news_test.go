package engine

import (
	"testing"
	"testing/synctest"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestReportWithoutNewsWritesNoDocument: a report that changes no state is COMMITTED with its inbox position, and writes the
// document of neither its node nor the node that it accuses. The first report of a boot epoch writes its node's document.
func TestReportWithoutNewsWritesNoDocument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(100)
		h := start(t, st, nil)
		send := func(node fault.NodeID, epoch fault.Epoch, seq fault.Seq, digest bool, obs ...fault.Observation) {
			h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{
				ID:     fault.ReportID{Origin: fault.Origin{Node: node, Half: fault.HalfHost}, Epoch: epoch, Seq: seq},
				Digest: digest, Observations: obs,
			}}}, Answerer: h.box, Arrived: time.Now()})
			time.Sleep(2 * gatherStarts)
			synctest.Wait()
		}
		revision := func(id fault.NodeID) uint64 {
			t.Helper()
			nodes, _, err := st.Nodes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range nodes {
				if n.GetId() == string(id) && n.GetState() == lofamov1.State_NORMAL {
					return n.GetRevision()
				}
			}
			t.Fatalf("no document of a NORMAL %s", id)
			return 0
		}
		accuser, accused := fault.NodeID("n0-0-0"), fault.NodeID("n1-0-0")
		for _, id := range []fault.NodeID{accuser, accused} {
			send(id, 1, 1, true, fault.Observation{Node: id, Component: fault.ComponentDNP, State: fault.Normal, Kind: fault.KindWatchdog})
		}
		before := map[fault.NodeID]uint64{accuser: revision(accuser), accused: revision(accused)}
		silent := []fault.Observation{
			{Node: accuser, Component: fault.Link(grid.XPlus), State: fault.Failed, Kind: fault.KindSilence},
			{Node: accuser, Component: fault.Link(grid.XMinus), State: fault.Failed, Kind: fault.KindSilence},
			{Node: accused, Component: fault.ComponentHost, State: fault.Unknown, Kind: fault.KindDescriptor},
		}
		send(accuser, 1, 2, false, silent...)
		if acks := h.box.list(); len(acks) != 1 || acks[0].GetStatus() != lofamov1.Ack_COMMITTED || acks[0].GetSeqs()[0] != 2 {
			t.Fatalf("acks %v: want COMMITTED of report 2", acks)
		}
		for id, was := range before {
			if now := revision(id); now != was {
				t.Errorf("the document of %s is of revision %d, before the report %d: want it unchanged", id, now, was)
			}
		}
		snap, err := st.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, p := range snap.Inbox {
			found = found || p.Origin.Node == accuser && p.Origin.Half == fault.HalfHost && p.Epoch == 1 && p.Highest == 2
		}
		if !found {
			t.Errorf("inbox positions %+v: want that of %s after report 2", snap.Inbox, accuser)
		}
		send(accuser, 2, 1, false, silent...)
		if now := revision(accuser); now == before[accuser] {
			t.Errorf("the document of %s is of revision %d after a report of a new boot epoch: want a newer one", accuser, now)
		}
	})
}
