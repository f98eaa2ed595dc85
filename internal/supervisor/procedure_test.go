package supervisor_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestProcedureSurvivesLossOfLeader: an operator starts a procedure on the torus through any replica. The leader is lost in the middle:
// the next one has its report, which names the node that never answers, and keeps the pause. The report appears in
// history, and so does that of a procedure that a node began by itself.
func TestProcedureSurvivesLossOfLeader(t *testing.T) {
	c, sups, leader := three(t, supervisortest.Options{Dims: "3x1x1", Preset: config.PresetFast,
		Configure: func(cfg *config.Supervisor) { cfg.Diagnosis.Pause = config.Duration(time.Hour) }})
	follower, other := (leader+1)%3, (leader+2)%3
	manage := func(i int) lofamov1.ManageClient {
		return lofamov1.NewManageClient(c.Conn(t, pki.RoleOperator, c.Configs[i].GRPC))
	}
	_, err := manage(follower).GetProcedure(t.Context(), &lofamov1.GetProcedureRequest{})
	wantCode(t, "none yet", err, codes.NotFound, "no procedure has run yet")
	stream, err := lofamov1.NewManageClient(c.Conn(t, pki.RoleViewer, c.Configs[leader].GRPC)).StartProcedure(t.Context(),
		&lofamov1.StartProcedureRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	wantCode(t, "a viewer", err, codes.PermissionDenied, "viewer")

	silent, starter := c.Agents["n2-0-0"], c.Agents["n0-0-0"]
	silent.Kill(fault.HalfDNP)
	starter.Linger()
	stream, err = manage(follower).StartProcedure(t.Context(),
		&lofamov1.StartProcedureRequest{Node: "0,0,0", Reason: "a test", DrainTimeoutMs: 100})
	for at := lofamov1.ProcedureState(0); err == nil && at != lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN; {
		var r *lofamov1.StartProcedureResponse
		if r, err = stream.Recv(); err == nil {
			at = r.GetProgress().GetState()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	// Its leader is lost in the middle: the next one asks for the result.
	stop(t, sups[leader])
	sups[leader] = nil
	for err == nil {
		_, err = stream.Recv()
	}
	wantCode(t, "whose leader is gone", err, codes.Unavailable, "continues without it")
	next := c.AwaitLeader(t, follower, other)
	var report *lofamov1.ProcedureReport
	for _, i := range []int{follower, other} {
		asked := manage(i)
		supervisortest.Eventually(t, "the report at "+c.Configs[i].ID, func() bool {
			report, err = asked.GetProcedure(t.Context(), &lofamov1.GetProcedureRequest{})
			return err == nil
		})
		if !report.GetClear() || report.GetStarter() != "n0-0-0" || report.GetSubject() != "operator/someone" || report.GetReason() != "a test" ||
			len(report.GetNodes()) != 2 ||
			!slices.Equal(report.GetSilent(), []string{"n2-0-0"}) || report.GetSupervisor() != c.Configs[next].ID {
			t.Errorf("of %s: %v", c.Configs[i].ID, report)
		}
	}
	if starter.Procedures()[0].GetAsk() || !c.Agents["n1-0-0"].Procedures()[0].GetAsk() || !silent.Procedures()[0].GetAsk() {
		t.Errorf("who was not to begin it is told to: %v", c.Agents["n1-0-0"].Procedures())
	}
	supervisortest.Eventually(t, "the next leader refuses one that is too soon", func() bool {
		stream, err := manage(next).StartProcedure(t.Context(), &lofamov1.StartProcedureRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return status.Code(err) == codes.ResourceExhausted
	})

	// A node begins a procedure by itself: the nodes' final statuses, sent to any replica, make up its report.
	for id, a := range c.Agents {
		a.Say(t, fault.HalfDNP, c.Configs[follower].Report,
			&lofamov1.Message{Body: &lofamov1.Message_ProcedureStatus{ProcedureStatus: &lofamov1.ProcedureStatus{
				Node: string(id), Half: lofamov1.Half_HALF_DNP, Epoch: 2, Wave: 2, Starter: 2, State: lofamov1.ProcedureState_PROCEDURE_NORMAL,
				Clear: true, Cause: "frames are lost",
			}}})
	}
	supervisortest.Eventually(t, "its report", func() bool {
		kept, err := manage(other).GetProcedure(t.Context(), &lofamov1.GetProcedureRequest{})
		return err == nil && kept.GetSubject() == "node/n2-0-0" && kept.GetReason() == "frames are lost" && len(kept.GetNodes()) == 3
	})
	events, err := c.Client(t, c.Configs[next].GRPC).ListEvents(t.Context(),
		&lofamov1.ListEventsRequest{FieldSelector: "kind=PROCEDURE_ENDED"})
	if err != nil || len(events.GetEvents()) != 2 || events.GetEvents()[0].GetObserver() != "operator/someone" ||
		!events.GetEvents()[0].GetClear() ||
		events.GetEvents()[1].GetObserver() != "node/n2-0-0" {
		t.Errorf("%v, %v", events.GetEvents(), err)
	}
	of, err := c.Client(t, c.Configs[next].GRPC).ListEvents(t.Context(),
		&lofamov1.ListEventsRequest{Node: "n2-0-0", FieldSelector: "kind=PROCEDURE_ENDED"})
	if err != nil || len(of.GetEvents()) != 1 || !slices.Equal(of.GetEvents()[0].GetConcerned(), []string{"n2-0-0"}) {
		t.Errorf("of who was silent: %v, %v", of.GetEvents(), err)
	}
	history, err := c.Client(t, c.Configs[next].GRPC).GetHistory(t.Context(), &lofamov1.GetHistoryRequest{Node: "n2-0-0"})
	if err != nil || !slices.ContainsFunc(history.GetEvents(),
		func(ev *lofamov1.Event) bool { return ev.GetKind() == lofamov1.EventKind_PROCEDURE_ENDED }) {
		t.Errorf("it is not in the history of who was silent: %v, %v", history.GetEvents(), err)
	}
}
