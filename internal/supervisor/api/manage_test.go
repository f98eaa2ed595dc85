package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/orders"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// diagnoser answers with one progress message and a report, or an error.
type diagnoser struct {
	asked   orders.DiagnosisRequest
	ordered orders.ProcedureRequest
	err     error
	none    bool // no report is kept
}

func (d *diagnoser) Procedure(_ context.Context, req orders.ProcedureRequest,
	progress func(*lofamov1.ProcedureProgress) error) (*lofamov1.ProcedureReport, error) {
	d.ordered = req
	if d.err != nil {
		return nil, d.err
	}
	_ = progress(&lofamov1.ProcedureProgress{Nodes: 2}) // it continues without a listener
	return &lofamov1.ProcedureReport{Reason: req.Reason}, nil
}

func (d *diagnoser) LastProcedure(context.Context) (*lofamov1.ProcedureReport, error) {
	if d.none || d.err != nil {
		return nil, d.err
	}
	return &lofamov1.ProcedureReport{Reason: "why"}, nil
}

func (d *diagnoser) Run(ctx context.Context, req orders.DiagnosisRequest,
	progress func(*lofamov1.DiagnosisProgress) error) (*lofamov1.DiagnosisReport, error) {
	d.asked = req
	if d.err != nil {
		return nil, d.err
	}
	if err := progress(&lofamov1.DiagnosisProgress{Nodes: 2}); err != nil {
		return nil, err
	}
	return &lofamov1.DiagnosisReport{Scope: req.String()}, ctx.Err()
}

func (d *diagnoser) LastDiagnosis(context.Context) (*lofamov1.DiagnosisReport, error) {
	if d.none || d.err != nil {
		return nil, d.err
	}
	return &lofamov1.DiagnosisReport{Scope: "all"}, nil
}

// responses is the caller's end of a stream.
type responses[R any] struct {
	grpc.ServerStream

	ctx  context.Context
	got  []*R
	fail error
}

func (r *responses[R]) Context() context.Context { return r.ctx }

func (r *responses[R]) Send(m *R) error {
	r.got = append(r.got, m)
	return r.fail
}

func TestDiagnoseChecksItsRequest(t *testing.T) {
	d := &diagnoser{}
	s := New(Config{
		Names: view.NewNames(grid.Dims{X: 2, Y: 1, Z: 1},
			map[grid.Coord]fault.NodeID{{}: "a", {X: 1}: "b"}), Directory: alone{}, Stopping: make(chan struct{}),
	})
	m := NewManage(s, d)
	for _, tc := range []struct {
		req  *lofamov1.DiagnoseRequest
		err  error // the diagnoser's
		code codes.Code
		text string // of the error; or the parsed request
	}{
		{&lofamov1.DiagnoseRequest{}, nil, codes.OK, "all"},
		{&lofamov1.DiagnoseRequest{Node: "1,0,0"}, nil, codes.OK, "node b"},
		{&lofamov1.DiagnoseRequest{Node: "a", Link: "X-", Rounds: 4}, nil, codes.OK, "link a X-"},
		{&lofamov1.DiagnoseRequest{Node: "c"}, nil, codes.NotFound, `node "c"`},
		{&lofamov1.DiagnoseRequest{Link: "X+"}, nil, codes.InvalidArgument, "link: given \"X+\" without a node"},
		{&lofamov1.DiagnoseRequest{Node: "a", Link: "W+"}, nil, codes.InvalidArgument, `link: given "W+"`},
		{&lofamov1.DiagnoseRequest{Rounds: 11}, nil, codes.InvalidArgument, "rounds: given 11: want 1 to 10"},
		{&lofamov1.DiagnoseRequest{}, orders.ErrBusy, codes.ResourceExhausted, "another diagnosis or procedure runs"},
		{&lofamov1.DiagnoseRequest{}, errors.New("link Z+ of node a: a torus of 2x1x1 has none"), codes.InvalidArgument, "has none"},
		{&lofamov1.DiagnoseRequest{}, orders.ErrNotLeading, codes.Unavailable, "no leader"},
	} {
		d.err, d.asked = tc.err, orders.DiagnosisRequest{}
		stream := &responses[lofamov1.DiagnoseResponse]{ctx: asOperator(t)}
		err := m.Diagnose(tc.req, stream)
		if tc.code != codes.OK {
			refused(t, tc.req.String(), err, tc.code, tc.text)
			continue
		}
		if err != nil || d.asked.String() != tc.text || d.asked.Rounds != max(1, int(tc.req.GetRounds())) || d.asked.Subject == "" {
			t.Errorf("%v: asked for %+v, %v", tc.req, d.asked, err)
		}
		if len(stream.got) != 2 || stream.got[0].GetProgress() == nil || stream.got[1].GetReport().GetScope() != tc.text {
			t.Errorf("%v: %v", tc.req, stream.got)
		}
	}
	d.err = nil
	if err := m.Diagnose(&lofamov1.DiagnoseRequest{},
		&responses[lofamov1.DiagnoseResponse]{ctx: asOperator(t), fail: context.Canceled}); err == nil {
		t.Error("a caller who is gone")
	}
}

func TestLastDiagnosisAndProcedureAreReturned(t *testing.T) {
	d := &diagnoser{}
	m := NewManage(New(Config{Directory: alone{}}), d)
	if r, err := m.GetDiagnosis(asOperator(t), nil); err != nil || r.GetScope() != "all" {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := m.GetProcedure(asOperator(t), nil); err != nil || r.GetReason() != "why" {
		t.Errorf("%v, %v", r, err)
	}
	d.none = true
	_, err := m.GetDiagnosis(asOperator(t), nil)
	refused(t, "none yet", err, codes.NotFound, "lofamoctl diagnose makes one")
	_, err = m.GetProcedure(asOperator(t), nil)
	refused(t, "none yet", err, codes.NotFound, "lofamoctl diagnose all --drain")
	d.err = errors.New("read what is kept: no quorum")
	_, err = m.GetDiagnosis(asOperator(t), nil)
	refused(t, "no quorum", err, codes.Unavailable, "no quorum")
	_, err = m.GetProcedure(asOperator(t), nil)
	refused(t, "no quorum", err, codes.Unavailable, "no quorum")
	parent := NewManage(New(Config{Directory: alone{}}), nil)
	_, err = parent.GetDiagnosis(asOperator(t), nil)
	refused(t, "a parent of regions", err, codes.FailedPrecondition, "ask a supervisor of the node's region")
	refused(t, "a parent of regions", parent.Diagnose(nil, &responses[lofamov1.DiagnoseResponse]{ctx: asOperator(t)}),
		codes.FailedPrecondition, "talks to no node")
	refused(t, "a parent of regions", parent.StartProcedure(nil, &responses[lofamov1.StartProcedureResponse]{ctx: asOperator(t)}),
		codes.FailedPrecondition, "talks to no node")
	_, err = parent.GetProcedure(asOperator(t), nil)
	refused(t, "a parent of regions", err, codes.FailedPrecondition, "ask a supervisor of the node's region")
}

func TestStartProcedureChecksItsRequest(t *testing.T) {
	d := &diagnoser{}
	m := NewManage(New(Config{
		Names: view.NewNames(grid.Dims{X: 2, Y: 1, Z: 1},
			map[grid.Coord]fault.NodeID{{}: "a", {X: 1}: "b"}), Directory: alone{}, Stopping: make(chan struct{}),
	}), d)
	nobody := fmt.Errorf("no node has begun it: %w", &orders.RefusedError{})
	for _, tc := range []struct {
		req  *lofamov1.StartProcedureRequest
		err  error // the diagnoser's
		code codes.Code
		text string // of the error
	}{
		{&lofamov1.StartProcedureRequest{}, nil, codes.OK, ""},
		{&lofamov1.StartProcedureRequest{Diagnose: true, Node: "1,0,0", Reason: "lost", DrainTimeoutMs: 60_000}, nil, codes.OK, ""},
		{&lofamov1.StartProcedureRequest{Node: "c"}, nil, codes.NotFound, `node "c"`},
		{&lofamov1.StartProcedureRequest{DrainTimeoutMs: 9}, nil, codes.InvalidArgument,
			"drain_timeout_ms: given 9: want 10 to 60000, or 0 for 1000"},
		{&lofamov1.StartProcedureRequest{DrainTimeoutMs: 60_001}, nil, codes.InvalidArgument, "drain_timeout_ms: given 60001"},
		{&lofamov1.StartProcedureRequest{Reason: strings.Repeat("x", 121)}, nil, codes.InvalidArgument, "reason: given 121 bytes"},
		{&lofamov1.StartProcedureRequest{Reason: "a\nb"}, nil, codes.InvalidArgument, "without control characters"},
		{&lofamov1.StartProcedureRequest{}, orders.ErrBusy, codes.ResourceExhausted, "another diagnosis or procedure runs"},
		{&lofamov1.StartProcedureRequest{}, &orders.PauseError{Left: 18 * time.Second}, codes.ResourceExhausted, "try again in 18s"},
		{&lofamov1.StartProcedureRequest{}, nobody, codes.FailedPrecondition, "no node has begun it"},
		{&lofamov1.StartProcedureRequest{}, orders.ErrNotLeading, codes.Unavailable, "no leader"},
		{&lofamov1.StartProcedureRequest{}, orders.ErrLost, codes.Unavailable, "continues without it"},
		{&lofamov1.StartProcedureRequest{}, orders.ErrNotRead, codes.Unavailable, "the store does not answer"},
	} {
		d.err, d.ordered = tc.err, orders.ProcedureRequest{}
		stream := &responses[lofamov1.StartProcedureResponse]{ctx: asOperator(t)}
		err := m.StartProcedure(tc.req, stream)
		if tc.code != codes.OK {
			refused(t, tc.req.String(), err, tc.code, tc.text)
			continue
		}
		want := orders.ProcedureRequest{Diagnose: tc.req.GetDiagnose(), Reason: tc.req.GetReason(), Subject: d.ordered.Subject,
			DrainTimeout: time.Second}
		if tc.req.GetNode() != "" {
			want.Node, want.DrainTimeout = "b", time.Minute
		}
		if err != nil || d.ordered != want || d.ordered.Subject == "" || len(stream.got) != 2 ||
			stream.got[1].GetReport().GetReason() != tc.req.GetReason() {
			t.Errorf("%v: ordered %+v, said %v, %v", tc.req, d.ordered, stream.got, err)
		}
	}
}

// A refusal by the leader is returned unchanged. Only "does not lead" is an error to retry.
func TestRefusalOfLeaderIsPassedOn(t *testing.T) {
	err := asked(status.Error(codes.FailedPrecondition, "no node has begun it: n0: it has not answered"))
	refused(t, "a refusal", err, codes.FailedPrecondition, "no node has begun it")
	refused(t, "no leader", asked(status.Error(codes.FailedPrecondition, orders.ErrNotLeading.Error())), codes.Unavailable, "no leader")
}

// Operators diagnose. Every role that may read may see the last report.
func TestRightsOfManage(t *testing.T) {
	for method, want := range map[string][]pki.Role{
		lofamov1.Manage_Diagnose_FullMethodName:       {pki.RoleOperator, pki.RoleSupervisor},
		lofamov1.Manage_StartProcedure_FullMethodName: {pki.RoleOperator, pki.RoleSupervisor},
		lofamov1.Manage_GetDiagnosis_FullMethodName:   readers,
		lofamov1.Manage_GetProcedure_FullMethodName:   readers,
	} {
		if got := rights(method); len(got) != len(want) || got[0] != want[0] {
			t.Errorf("%s: %v, want %v", method, got, want)
		}
	}
}
