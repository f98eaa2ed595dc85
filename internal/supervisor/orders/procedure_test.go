package orders

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// ordered is a DNP half that has an order.
func (n *diagnosedNodes) ordered(at fault.NodeID, o *lofamov1.ProcedureOrder) {
	n.mu.Lock()
	n.procedures = append(n.procedures, o)
	begin, dead := n.begin, n.dnp[at]
	n.mu.Unlock()
	switch {
	case dead:
	case begin != nil:
		begin(o)
	case o.GetAsk():
		n.says(at, o, lofamov1.ProcedureState_PROCEDURE_NORMAL, nil)
	default:
		n.through(o)
	}
}

// says sends a node's status.
func (n *diagnosedNodes) says(at fault.NodeID, o *lofamov1.ProcedureOrder, state lofamov1.ProcedureState,
	edit func(*lofamov1.ProcedureStatus)) {
	starter, _ := n.names.Coord(fault.NodeID(o.GetNode()))
	st := &lofamov1.ProcedureStatus{
		Number: o.GetNumber(), Node: string(at), Half: lofamov1.Half_HALF_DNP, Epoch: 1, Wave: 3, Starter: uint32(n.names.dims.Rank(starter)),
		State: state, Round: 1,
		Clear: true, Diagnosed: o.GetDiagnose(),
	}
	if edit != nil {
		edit(st)
	}
	n.m.Status(st)
}

// through has all living nodes go through a procedure.
func (n *diagnosedNodes) through(o *lofamov1.ProcedureOrder) {
	for s := lofamov1.ProcedureState_PROCEDURE_ERROR_DETECT_PROPAGATE; s <= lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN; s++ {
		n.says(fault.NodeID(o.GetNode()), o, s, nil)
	}
	for _, id := range n.names.All() {
		if n.dnp[id] {
			continue
		}
		if o.GetDiagnose() {
			n.tested(&lofamov1.DiagnosisOrder{Number: o.GetNumber(), Node: string(id), Links: n.links()})
		}
		n.says(id, o, lofamov1.ProcedureState_PROCEDURE_NORMAL, nil)
	}
}

// links are all that a node has.
func (n *diagnosedNodes) links() (bits uint32) {
	for _, d := range n.names.dims.Links() {
		bits |= 1 << d.Index()
	}
	return bits
}

func (n *diagnosedNodes) procedure(req ProcedureRequest) (*lofamov1.ProcedureReport, []string, error) {
	if req.DrainTimeout == 0 {
		req.DrainTimeout = 50 * time.Millisecond
	}
	var said []string
	r, err := n.m.Procedure(n.t.Context(), req, func(p *lofamov1.ProcedureProgress) error {
		said = append(said, p.GetState().String())
		return nil
	})
	return r, said, err
}

// A procedure with a diagnosis: one order, the nodes' findings, the stored report, and one event for each.
func TestProcedureReportIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 2})
		n.m.Lead(7)
		r, said, err := n.procedure(ProcedureRequest{Diagnose: true, Reason: "why not", Subject: "operator/o"})
		if err != nil {
			t.Fatal(err)
		}
		if !r.GetClear() || r.GetStarter() != "n0-0-0" || r.GetSubject() != "operator/o" || r.GetReason() != "why not" ||
			r.GetSupervisor() != "s1" || len(r.GetNodes()) != 8 || r.GetWave() != 3 {
			t.Errorf("%v", r)
		}
		d := r.GetDiagnosis()
		if len(d.GetLinks()) != 24 || d.GetScope() != "all" || d.GetSubject() != "operator/o" ||
			len(d.GetFaults())+len(d.GetOpen())+len(d.GetSilent()) > 0 {
			t.Errorf("%v", d)
		}
		if len(n.procedures) != 1 || len(n.orders) != 8 {
			t.Errorf("%d orders of a procedure, %d tests", len(n.procedures), len(n.orders))
		}
		o := n.procedures[0]
		if o.GetNumber().GetTerm() != 7 || o.GetNumber().GetCount() != 1 || o.GetDelayUs() != 3000 || o.GetHopUs() != 1000 ||
			o.GetDrainTimeoutMs() != 50 || o.GetReplyTo() != "[::1]:10" || o.GetReason() != "why not" || len(o.GetAbsent()) > 0 {
			t.Errorf("%v", o)
		}
		if !slices.Contains(said, "PROCEDURE_SYSTEM_DRAIN") || said[len(said)-1] != "PROCEDURE_NORMAL" {
			t.Errorf("told %v", said)
		}
		if kept, err := n.m.LastProcedure(t.Context()); err != nil || !proto.Equal(kept, r) {
			t.Errorf("kept: %v, %v", kept, err)
		}
		if kept, err := n.m.LastDiagnosis(t.Context()); err != nil || !proto.Equal(kept, d) {
			t.Errorf("kept: %v, %v", kept, err)
		}
		ev := n.events()
		if len(ev) != 2 || ev[0].GetKind() != lofamov1.EventKind_PROCEDURE_ENDED || !ev[0].GetClear() || ev[0].GetObserver() != "operator/o" ||
			!strings.HasSuffix(ev[0].GetReason(), "; why not") ||
			ev[1].GetKind() != lofamov1.EventKind_DIAGNOSIS_ENDED {
			t.Errorf("%v", ev)
		}
		if got := n.counted("lofamo_procedures_total", metrics.ProcedureClear); got != 1 {
			t.Errorf("%v procedures are counted", got)
		}
	})
}

// As in a diagnosis, lost findings are requested again and dead halves named. A DNP half that the map calls dead
// is no member.
func TestProcedureNamesDeadHalves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 3, Y: 3, Z: 1})
		n.m.Lead(7)
		n.lose = 9
		n.dnp["n1-2-0"] = true
		n.dnp["n0-1-0"], n.host["n0-1-0"] = true, true
		n.places[7].Failed = true
		r, _, err := n.procedure(ProcedureRequest{Diagnose: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := faults(r.GetDiagnosis()); !slices.Equal(got, []string{"PART_NODE n0-1-0", "PART_DNP_HALF n1-2-0"}) {
			t.Errorf("found %v", got)
		}
		if !slices.Equal(r.GetSilent(), []string{"n0-1-0"}) || !slices.Equal(n.procedures[0].GetAbsent(), []uint32{7}) {
			t.Errorf("silent %v, absent %v", r.GetSilent(), n.procedures[0].GetAbsent())
		}
		if len(n.procedures) < 2 {
			t.Error("who has not said that it is through is not asked by way of others")
		}
		for _, o := range n.procedures[1:] {
			if !o.GetAsk() || o.GetNode() != "n0-1-0" || o.GetNumber().GetCount() != 1 {
				t.Errorf("%v", o)
			}
		}
		if ev := n.events(); !slices.Contains(ev[len(ev)-1].GetConcerned(), "n1-2-0") || !slices.Contains(ev[0].GetConcerned(), "n0-1-0") {
			t.Errorf("%v", ev)
		}
	})
}

// One at a time together with diagnoses, numbered together; with a pause, which a later leader keeps as well.
func TestOneProcedureRunsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		n.m.Lead(7)
		var within, other error
		n.begin = func(o *lofamov1.ProcedureOrder) {
			_, _, within = n.procedure(ProcedureRequest{})
			_, _, other = n.run(DiagnosisRequest{})
			n.through(o)
		}
		if _, _, err := n.procedure(ProcedureRequest{}); err != nil || !errors.Is(within, ErrBusy) || !errors.Is(other, ErrBusy) {
			t.Errorf("%v; within it %v, %v", err, within, other)
		}
		for _, again := range []func(){func() {}, func() { n.m.Lead(0); n.m.Lead(8) }} {
			again()
			_, _, err := n.procedure(ProcedureRequest{})
			var pause *PauseError
			if !errors.As(err, &pause) || pause.Left < 50*time.Second || pause.Left > time.Minute ||
				!strings.Contains(err.Error(), "try again in 1m0s") && !strings.Contains(err.Error(), "try again in 5") {
				t.Errorf("too soon: %v", err)
			}
		}
		// A report from the future, left by a changed wall clock, delays a procedure by no more than a pause.
		n.m.mu.Lock()
		n.m.led = time.Now().Add(-time.Minute)
		n.m.mu.Unlock()
		if _, _, err := n.procedure(ProcedureRequest{}); err != nil {
			t.Errorf("a pause after this replica began to lead: %v", err)
		}
		r := n.must(DiagnosisRequest{})
		if number := n.orders[0].GetNumber(); r.GetScope() != "all" || number.GetTerm() != 8 || number.GetCount() != 3 {
			t.Errorf("a diagnosis needs no pause, and has the next number: %v", number)
		}
	})
}

// A procedure that no node begins is reported; an invalid request is refused.
func TestUnstartedProcedureIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		n.m.Lead(7)
		n.begin = func(o *lofamov1.ProcedureOrder) {
			n.says(fault.NodeID(o.GetNode()), o, 0, func(st *lofamov1.ProcedureStatus) { st.Error = "it has started as many as it may" })
		}
		_, _, err := n.procedure(ProcedureRequest{})
		var refused *RefusedError
		if !errors.As(err, &refused) || strings.Count(err.Error(), "as many as it may") != 3 {
			t.Errorf("%v", err)
		}
		if got := n.counted("lofamo_procedures_total", metrics.ProcedureFailed); got != 1 {
			t.Errorf("%v failures are counted", got)
		}
		n = newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		n.m.Lead(7)
		n.places[3].Failed = true
		if _, _, err := n.procedure(ProcedureRequest{Node: "n1-1-0"}); !errors.As(err, &refused) || !strings.Contains(err.Error(), "is FAILED") {
			t.Errorf("a starter that is FAILED: %v", err)
		}
		if len(n.procedures) > 0 {
			t.Errorf("ordered all the same: %v", n.procedures)
		}
	})
}

// A store that does not answer is no refusal: a later call may succeed.
func TestUnreadMapIsNoRefusal(t *testing.T) {
	n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
	n.m.Lead(7)
	n.m.cfg.Places = func(context.Context) ([]Place, error) { return nil, ErrNotRead }
	_, _, err := n.procedure(ProcedureRequest{})
	var refused *RefusedError
	if !errors.Is(err, ErrNotRead) || errors.As(err, &refused) {
		t.Errorf("%v: want %v without a refusal", err, ErrNotRead)
	}
}

// A caller that goes away only misses the report itself; the end of a term ends the procedure.
func TestProcedureSurvivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		n.m.Lead(7)
		ctx, cancel := context.WithCancel(t.Context())
		told := 0
		r, err := n.m.Procedure(ctx, ProcedureRequest{DrainTimeout: time.Second}, func(*lofamov1.ProcedureProgress) error {
			told++
			cancel()
			return context.Canceled
		})
		if kept, kerr := n.m.LastProcedure(t.Context()); err != nil || kerr != nil || told != 1 || !r.GetClear() || !proto.Equal(kept, r) {
			t.Errorf("%v, %v, %v, told %d times", r, err, kerr, told)
		}
		n = newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		n.m.Lead(7)
		n.begin = func(o *lofamov1.ProcedureOrder) {
			n.says(fault.NodeID(o.GetNode()), o, lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN, nil)
			n.m.Lead(0)
		}
		if _, _, err := n.procedure(ProcedureRequest{}); !errors.Is(err, ErrLost) || errors.Is(err, ErrNotLeading) {
			t.Errorf("the term ended, and another leader is not to order one more: %v", err)
		}
	})
}

// loseLead orders a procedure in term 7, which ends while the nodes drain.
func (n *diagnosedNodes) loseLead(req ProcedureRequest) {
	n.t.Helper()
	n.m.Lead(7)
	n.begin = func(o *lofamov1.ProcedureOrder) {
		n.says(fault.NodeID(o.GetNode()), o, lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN, nil)
		n.m.Lead(0)
	}
	if _, _, err := n.procedure(req); !errors.Is(err, ErrLost) {
		n.t.Fatal(err)
	}
}

// The leader fails in the middle: the next one asks for the outcome and reports it to the requester. An order that
// reached no node is not reported.
func TestNextLeaderReportsProcedure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		n.loseLead(ProcedureRequest{Diagnose: true, Subject: "operator/o", Reason: "why not"})
		n.m.Lead(8)
		n.begin, n.procedures = nil, nil
		if _, _, err := n.procedure(ProcedureRequest{}); !errors.Is(err, ErrBusy) || len(n.procedures) > 0 {
			t.Errorf("a procedure before the report on the earlier leader's: %v", err)
		}
		n.m.Resume(t.Context())
		r, err := n.m.LastProcedure(t.Context())
		if err != nil || !r.GetClear() || r.GetSubject() != "operator/o" || r.GetReason() != "why not" || len(r.GetNodes()) != 4 ||
			len(r.GetDiagnosis().GetLinks()) != 8 {
			t.Errorf("%v, %v", r, err)
		}
		nodes := map[string]bool{}
		for _, o := range n.procedures { // more than once if their answers are late
			nodes[o.GetNode()] = true
		}
		if len(nodes) != 4 {
			t.Errorf("asked %v", n.procedures)
		}
		asked := len(n.procedures)
		for _, o := range n.procedures {
			if !o.GetAsk() || o.GetNumber().GetTerm() != 7 || o.GetNumber().GetCount() != 1 {
				t.Errorf("%v", o)
			}
		}
		for _, again := range []func(){func() {}, func() { n.m.Lead(9) }} { // reported once
			again()
			n.m.Resume(t.Context())
		}
		if len(n.procedures) != asked || len(n.events()) != 2 {
			t.Errorf("a second report: %v", n.events())
		}
		for _, o := range n.orders {
			if o.GetNumber().GetTerm() != 7 {
				t.Errorf("an order asks for findings of another order: %v", o)
			}
		}

		kv, err := store.OrderedPut(store.Ordered{Term: 5, Count: 1, Subject: "operator/o", Started: time.Now()})
		if err == nil {
			_, err = n.m.cfg.Reports.Write(t.Context(), store.Write{Puts: []store.KV{kv}})
		}
		if err != nil {
			t.Fatal(err)
		}
		n.begin = func(o *lofamov1.ProcedureOrder) {
			n.says(fault.NodeID(o.GetNode()), o, 0, func(st *lofamov1.ProcedureStatus) { st.Error = "nothing is known of this order" })
		}
		n.m.Resume(t.Context())
		if o, err := n.store.LastOrdered(t.Context()); o != nil || err != nil || len(n.events()) != 2 {
			t.Errorf("an order that no node received: %v, %v, %v", o, err, n.events())
		}
	})
}

// faintReports fails the first reads of an ordered procedure.
type faintReports struct {
	Reports

	fails int
}

func (r *faintReports) LastOrdered(ctx context.Context) (*store.Ordered, error) {
	if r.fails--; r.fails >= 0 {
		return nil, errors.New("no quorum")
	}
	return r.Reports.LastOrdered(ctx)
}

// The store does not answer the new leader's first questions. The leader asks again, and reports the outcome of the procedure.
func TestNextLeaderAsksTheStoreAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		n.loseLead(ProcedureRequest{Subject: "operator/o"})
		n.m.Lead(8)
		n.begin = nil
		n.m.cfg.Reports = &faintReports{n.m.cfg.Reports, 3}
		n.m.Resume(t.Context())
		if r, err := n.m.LastProcedure(t.Context()); err != nil || r.GetSubject() != "operator/o" {
			t.Errorf("%v, %v: want the report of the earlier leader's procedure", r, err)
		}
		n.m.cfg.Reports = &faintReports{n.m.cfg.Reports, math.MaxInt}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if n.m.Resume(ctx); ctx.Err() == nil {
			t.Error("it gives up before the term ends")
		}
	})
}

// A procedure that a node has begun by itself is stored and reported; a node that has begun too many is named.
func TestProcedureOfNodeIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 1, Z: 1})
		n.m.Lead(7)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			n.m.Strays(ctx)
		}()
		for wave := range uint64(tooMany + 1) {
			for _, id := range n.names.All() {
				n.says(id, &lofamov1.ProcedureOrder{Node: "n1-0-0"}, lofamov1.ProcedureState_PROCEDURE_NORMAL, func(st *lofamov1.ProcedureStatus) {
					st.Wave, st.Cause = 100+wave, "frames were lost"
				})
			}
		}
		// Statuses with an order's number, from whichever leader, are ignored.
		n.says("n0-0-0", &lofamov1.ProcedureOrder{Node: "n0-0-0", Number: &lofamov1.OrderNumber{Term: 7, Count: 9}},
			lofamov1.ProcedureState_PROCEDURE_NORMAL, nil)
		n.says("n0-0-0", &lofamov1.ProcedureOrder{Node: "n0-0-0", Number: &lofamov1.OrderNumber{Term: 6, Count: 9}},
			lofamov1.ProcedureState_PROCEDURE_NORMAL, nil)
		for end := time.Now().Add(time.Minute); len(n.events()) < tooMany+2; time.Sleep(time.Millisecond) { // virtual time
			if time.Now().After(end) {
				t.Fatal("no reports")
			}
		}
		cancel()
		<-done
		ev := n.events()
		if last := ev[len(ev)-1]; len(ev) != tooMany+2 || last.GetNode() != "n1-0-0" ||
			!strings.Contains(last.GetReason(), "it has begun 4 procedures by itself within 1h0m0s") {
			t.Errorf("%v", ev)
		}
		r, err := n.m.LastProcedure(t.Context())
		if err != nil || r.GetSubject() != "node/n1-0-0" || r.GetReason() != "frames were lost" || len(r.GetNodes()) != 2 || r.GetWave() != 103 {
			t.Errorf("%v, %v", r, err)
		}
		if _, _, err := n.procedure(ProcedureRequest{}); err == nil || !strings.Contains(err.Error(), "too short a time ago") {
			t.Errorf("it counts for the pause: %v", err)
		}
	})
}

// A status that an earlier term has not processed counts for nothing in a later one: the leader in between has reported its procedure.
func TestStatusOfEarlierTermIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 1, Z: 1})
		n.m.Lead(7)
		for _, id := range n.names.All() {
			n.says(id, &lofamov1.ProcedureOrder{Node: "n1-0-0"}, lofamov1.ProcedureState_PROCEDURE_NORMAL, nil)
		}
		n.m.Lead(0)
		time.Sleep(time.Hour)
		n.m.Lead(9)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n.m.Strays(ctx)
		if ev := n.events(); len(ev) > 0 {
			t.Errorf("%v", ev)
		}
	})
}

// A node can invent procedures, in its own name and in others'. This does not fill the history, does not name
// another node, and does not keep operators from their procedures.
func TestInventedProceduresAreBounded(t *testing.T) {
	n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
	n.m.Lead(7)
	starters := newStartCounts(tooMany, tooManyIn)
	say := func(i int, vouched bool) {
		now := time.Now()
		n.m.stray(t.Context(), now, finishedStray{Report: &lofamov1.ProcedureReport{Wave: uint64(i)}, Node: "n1-0-0",
			Began: now.Add(-time.Second), Vouched: vouched}, starters)
	}
	for i := range 4 * tooMany {
		say(i, false)
	}
	if r, err := n.m.LastProcedure(t.Context()); r != nil || err != nil || len(n.events()) > 0 {
		t.Errorf("what one node alone tells of another is kept: %v, %v, %v", r, err, n.events())
	}
	if _, _, err := n.procedure(ProcedureRequest{}); err != nil {
		t.Errorf("it counts for the pause: %v", err)
	}
	before := len(n.events())
	for i := range 4 * tooMany {
		say(i, true)
	}
	// one report each, one more, and the event that it is one too many
	if got := len(n.events()) - before; got != tooMany+2 {
		t.Errorf("%d events", got)
	}
	if r, err := n.m.LastProcedure(t.Context()); err != nil || r.GetWave() != tooMany {
		t.Errorf("the last is %v, %v", r, err)
	}
}
