package api

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/diagnose"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// diagnoser answers with one progress and a report, or an error.
type diagnoser struct {
	asked diagnose.Request
	err   error
}

func (d *diagnoser) Run(ctx context.Context, req diagnose.Request, progress func(*lofamov1.DiagnosisProgress) error) (*lofamov1.DiagnosisReport, error) {
	d.asked = req
	if d.err != nil {
		return nil, d.err
	}
	if err := progress(&lofamov1.DiagnosisProgress{Nodes: 2}); err != nil {
		return nil, err
	}
	return &lofamov1.DiagnosisReport{Scope: req.String()}, ctx.Err()
}

func (d *diagnoser) Last() (*lofamov1.DiagnosisReport, error) {
	return &lofamov1.DiagnosisReport{Scope: "all"}, d.err
}

// responses is the caller's end of a stream.
type responses struct {
	grpc.ServerStream

	ctx  context.Context
	got  []*lofamov1.DiagnoseResponse
	fail error
}

func (r *responses) Context() context.Context { return r.ctx }

func (r *responses) Send(m *lofamov1.DiagnoseResponse) error {
	r.got = append(r.got, m)
	return r.fail
}

func TestDiagnose(t *testing.T) {
	d := &diagnoser{}
	s := New(Config{
		Names: view.NewNames(grid.Dims{X: 2, Y: 1, Z: 1}, map[grid.Coord]fault.NodeID{{}: "a", {X: 1}: "b"}), Directory: alone{}, Stopping: make(chan struct{}),
	})
	m := NewManage(s, d)
	for _, tc := range []struct {
		req  *lofamov1.DiagnoseRequest
		err  error // the diagnoser's
		code codes.Code
		text string // of the error; or what is asked for
	}{
		{&lofamov1.DiagnoseRequest{}, nil, codes.OK, "all"},
		{&lofamov1.DiagnoseRequest{Node: "1,0,0"}, nil, codes.OK, "node b"},
		{&lofamov1.DiagnoseRequest{Node: "a", Link: "X-", Rounds: 4}, nil, codes.OK, "link a X-"},
		{&lofamov1.DiagnoseRequest{Node: "c"}, nil, codes.NotFound, `node "c"`},
		{&lofamov1.DiagnoseRequest{Link: "X+"}, nil, codes.InvalidArgument, "link: given \"X+\" without a node"},
		{&lofamov1.DiagnoseRequest{Node: "a", Link: "W+"}, nil, codes.InvalidArgument, `link: given "W+"`},
		{&lofamov1.DiagnoseRequest{Rounds: 11}, nil, codes.InvalidArgument, "rounds: given 11: want 1 to 10"},
		{&lofamov1.DiagnoseRequest{}, diagnose.ErrBusy, codes.ResourceExhausted, "another diagnosis runs"},
		{&lofamov1.DiagnoseRequest{}, errors.New("link Z+ of node a: a torus of 2x1x1 has none"), codes.InvalidArgument, "has none"},
		{&lofamov1.DiagnoseRequest{}, diagnose.ErrNotLeading, codes.Unavailable, "no leader"},
	} {
		d.err, d.asked = tc.err, diagnose.Request{}
		stream := &responses{ctx: asOperator(t)}
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
	if err := m.Diagnose(&lofamov1.DiagnoseRequest{}, &responses{ctx: asOperator(t), fail: context.Canceled}); err == nil {
		t.Error("a caller who is gone")
	}
}

func TestGetDiagnosis(t *testing.T) {
	d := &diagnoser{}
	m := NewManage(New(Config{Directory: alone{}}), d)
	if r, err := m.GetDiagnosis(asOperator(t), nil); err != nil || r.GetScope() != "all" {
		t.Errorf("%v, %v", r, err)
	}
	d.err = diagnose.ErrNone
	_, err := m.GetDiagnosis(asOperator(t), nil)
	refused(t, "none yet", err, codes.NotFound, "lofamoctl diagnose makes one")
	d.err = diagnose.ErrNotLeading
	_, err = m.GetDiagnosis(asOperator(t), nil)
	refused(t, "no leader", err, codes.Unavailable, "no leader")
	parent := NewManage(New(Config{Directory: alone{}}), nil)
	_, err = parent.GetDiagnosis(asOperator(t), nil)
	refused(t, "a parent of regions", err, codes.FailedPrecondition, "ask a supervisor of the node's region")
	refused(t, "a parent of regions", parent.Diagnose(nil, &responses{ctx: asOperator(t)}), codes.FailedPrecondition, "talks to no node")
}

// Operators diagnose; whoever may read may see the last report.
func TestRightsOfManage(t *testing.T) {
	for method, want := range map[string][]pki.Role{
		lofamov1.Manage_Diagnose_FullMethodName:     {pki.RoleOperator, pki.RoleSupervisor},
		lofamov1.Manage_GetDiagnosis_FullMethodName: readers,
	} {
		if got := rights(method); len(got) != len(want) || got[0] != want[0] {
			t.Errorf("%s: %v, want %v", method, got, want)
		}
	}
}
