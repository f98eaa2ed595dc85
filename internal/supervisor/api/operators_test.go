package api

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
)

// changing is an Operators whose changes fail with the error.
type changing struct{ err error }

func (c changing) Change(context.Context, func(store.Topology) ([]store.Write, error)) (uint64, error) {
	return 0, c.err
}

func (c changing) Topology(context.Context) (store.Topology, error) { return store.Topology{}, c.err }

// broken accepts a call, and breaks it off.
type broken struct {
	lofamov1.UnimplementedFaultSupervisorServer
	err error
}

func (b broken) SetMaintenance(context.Context, *lofamov1.SetMaintenanceRequest) (*lofamov1.SetMaintenanceResponse, error) {
	return nil, b.err
}

// TestWhatBecameOfAChange: an error says that nothing was changed only if that is certain.
func TestWhatBecameOfAChange(t *testing.T) {
	names := newLeads(dimsOf(t, "2x1x1")).names
	dead, err := grpc.NewClient("passthrough:///127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dead.Close() })
	for name, c := range map[string]struct {
		own      error
		leader   *grpc.ClientConn
		code     codes.Code
		text     string
		noLeader bool
	}{
		"no leader": {engine.ErrNotLeading, nil, codes.Unavailable, "no leader: nothing was changed: none is known. ", true},
		"a dead one": {engine.ErrNotLeading, dead, codes.Unavailable,
			"no leader: nothing was changed: supervisor other, which led last, is not reached. ", true},
		"one that did lead": {engine.ErrNotLeading, dial(t, broken{err: status.Error(codes.FailedPrecondition, engine.ErrNotLeading.Error())}),
			codes.Unavailable, "nothing was changed: supervisor other does not lead any more. ", true},
		"one that refuses": {engine.ErrNotLeading, dial(t, broken{err: status.Error(codes.FailedPrecondition, "x")}),
			codes.FailedPrecondition, "x", false},
		"one that says why it does not lead": {engine.ErrNotLeading,
			dial(t, broken{err: withInfo(codes.FailedPrecondition, reasonNotLeading, "x", nil)}), codes.Unavailable, "no leader", true},
		"one whose refusal has the same words": {engine.ErrNotLeading,
			dial(t, broken{err: status.Error(codes.FailedPrecondition, "reason: "+engine.ErrNotLeading.Error())}),
			codes.FailedPrecondition, "reason", false},
		"one that breaks off": {engine.ErrNotLeading, dial(t, broken{err: status.Error(codes.Unavailable, "cut")}), codes.Unavailable,
			"cut", false},
		"the lead is lost here": {engine.ErrUnsettled, nil, codes.DeadlineExceeded, "the outcome is unknown", false},
	} {
		s := New(Config{Self: "s1", Names: names, Operators: changing{c.own}, Directory: led{conn: c.leader}})
		_, err := s.SetMaintenance(asOperator(t), &lofamov1.SetMaintenanceRequest{Nodes: []string{"n0-0-0"}, Reason: "new fan"})
		if status.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%s: %v, want %s with %q", name, err, c.code, c.text)
		}
		details := status.Convert(err).Details()
		if info, ok := append(details, nil)[0].(*errdetails.ErrorInfo); (ok && info.GetReason() == "NO_LEADER") != c.noLeader {
			t.Errorf("%s: details %v", name, details)
		}
	}
}

// busy is an Operators whose current change does not end.
type busy struct{ names *view.Names }

func (busy) Change(ctx context.Context, _ func(store.Topology) ([]store.Write, error)) (uint64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func (b busy) Topology(context.Context) (store.Topology, error) {
	return store.Topology{Topology: b.names.Topology()}, nil
}

// TestGetTopologyDoesNotWaitForChange: a reader takes no turn among the changes.
func TestGetTopologyDoesNotWaitForChange(t *testing.T) {
	names := newLeads(dimsOf(t, "2x1x1")).names
	s := New(Config{Self: "s1", Names: names, Operators: busy{names}, Directory: led{}})
	ctx, cancel := context.WithTimeout(asOperator(t), time.Second)
	defer cancel()
	top, err := s.GetTopology(ctx, &lofamov1.GetTopologyRequest{})
	if err != nil || top.GetDims() != "2x1x1" {
		t.Errorf("%v, %v: want the topology of 2x1x1", top, err)
	}
}
