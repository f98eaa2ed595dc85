package api

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// among is the directory of one of several replicas. Each knows only its own alarms.
type among struct {
	alone
	self  string
	list  []*lofamov1.Supervisor
	conns map[string]*grpc.ClientConn
}

func (d among) Supervisors(context.Context) (out []*lofamov1.Supervisor) {
	for _, s := range d.list {
		sup := &lofamov1.Supervisor{Id: s.GetId(), State: s.GetState()}
		if s.GetId() == d.self {
			sup.Alarms, sup.QuorumAge = s.GetAlarms(), s.GetQuorumAge()
		}
		out = append(out, sup)
	}
	return out
}

func (d among) Conn(id string) *grpc.ClientConn { return d.conns[id] }

// deaf never answers.
type deaf struct {
	lofamov1.UnimplementedFaultSupervisorServer
}

func (deaf) ListSupervisors(ctx context.Context, _ *lofamov1.ListSupervisorsRequest) (*lofamov1.ListSupervisorsResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestSupervisorsAreListedWithAlarms: any replica returns the alarms of all reachable replicas.
func TestSupervisorsAreListedWithAlarms(t *testing.T) {
	list := []*lofamov1.Supervisor{
		{Id: "s1", State: lofamov1.State_NORMAL, Alarms: []string{"store slow: a sync takes 1s"}},
		{Id: "s2", State: lofamov1.State_NORMAL, Alarms: []string{"store full", "no quorum"}, QuorumAge: durationpb.New(time.Minute)},
		{Id: "s3", State: lofamov1.State_NORMAL, Alarms: []string{"never told"}},
		{Id: "s4", State: lofamov1.State_FAILED, Alarms: []string{"never told"}},
	}
	conns := make(map[string]*grpc.ClientConn)
	for _, id := range []string{"s1", "s2"} {
		conns[id] = dial(t, New(Config{Self: id, Names: newLeads(grid.Dims{X: 2, Y: 1, Z: 1}).names,
			Directory: among{self: id, list: list, conns: conns}}))
	}
	conns["s3"] = dial(t, deaf{})
	for _, id := range []string{"s1", "s2"} {
		ask := func() *lofamov1.ListSupervisorsResponse {
			resp, err := lofamov1.NewFaultSupervisorClient(conns[id]).ListSupervisors(t.Context(), &lofamov1.ListSupervisorsRequest{})
			if err != nil || len(resp.GetSupervisors()) != len(list) {
				t.Fatalf("%v, %v", resp, err)
			}
			return resp
		}
		resp := ask()
		complete := func() bool {
			return len(resp.GetSupervisors()[0].GetAlarms()) > 0 && len(resp.GetSupervisors()[1].GetAlarms()) > 0
		}
		for end := time.Now().Add(time.Minute); !complete() && time.Now().Before(end); { // a busy replica may miss complaintTime
			resp = ask()
		}
		for i, sup := range resp.GetSupervisors() {
			if want := list[i]; i < 2 && (len(sup.GetAlarms()) != len(want.GetAlarms()) ||
				sup.GetQuorumAge().AsDuration() != want.GetQuorumAge().AsDuration()) {
				t.Errorf("%s says of %s %v, %v", id, sup.GetId(), sup.GetAlarms(), sup.GetQuorumAge())
			} else if i >= 2 && len(sup.GetAlarms()) > 0 {
				t.Errorf("%s says of %s, which does not answer, %v", id, sup.GetId(), sup.GetAlarms())
			}
		}
	}
}
