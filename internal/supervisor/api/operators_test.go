package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
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
		"the store is not read": {storeUnread(errors.New("no quorum")), nil, codes.Unavailable, "no quorum: nothing was changed", false},
		"the lead is lost here": {engine.ErrUnsettled, nil, codes.DeadlineExceeded, "the outcome is unknown", false},
	} {
		cfg := Config{Self: "s1", Names: names, Operators: changing{c.own}, Directory: led{conn: c.leader}, LeaderWait: time.Hour}
		if c.noLeader {
			cfg.LeaderWait = 0
		}
		s := New(cfg)
		_, err := s.SetMaintenance(asOperator(t), &lofamov1.SetMaintenanceRequest{Nodes: []string{"n0-0-0"}, Reason: "new fan"})
		if status.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%s: %v, want %s with %q", name, err, c.code, c.text)
		}
		details := status.Convert(err).Details()
		if info, ok := append(details, nil)[0].(*errdetails.ErrorInfo); (ok && info.GetReason() == "NO_LEADER") != c.noLeader {
			t.Errorf("%s: details %v", name, details)
		}
		if name == "the store is not read" && infoOf(t, err).GetReason() != "NOTHING_CHANGED" {
			t.Errorf("%s: details %v", name, details)
		}
	}
}

// elected is an Operators whose replica leads after some calls.
type elected struct{ calls, after int }

func (e *elected) Change(context.Context, func(store.Topology) ([]store.Write, error)) (uint64, error) {
	if e.calls++; e.calls <= e.after {
		return 0, engine.ErrNotLeading
	}
	return 7, nil
}

func (*elected) Topology(context.Context) (store.Topology, error) {
	return store.Topology{}, engine.ErrNotLeading
}

// TestChangeWaitsForLeader: a change during an election succeeds once somebody leads. A change that another replica forwarded does not
// wait here, and neither does a read of the topology.
func TestChangeWaitsForLeader(t *testing.T) {
	names := newLeads(dimsOf(t, "2x1x1")).names
	forwarded := metadata.NewIncomingContext(asOperator(t), metadata.Pairs(proxiedKey, "1"))
	for name, c := range map[string]struct {
		ctx   context.Context
		wait  time.Duration
		code  codes.Code
		calls int
	}{
		"election":               {asOperator(t), time.Hour, codes.OK, 4},
		"no time":                {asOperator(t), 0, codes.Unavailable, 1},
		"forwarded to a replica": {forwarded, time.Hour, codes.FailedPrecondition, 1},
	} {
		o := &elected{after: 3}
		s := New(Config{Self: "s1", Names: names, Operators: o, Directory: led{}, LeaderWait: c.wait})
		_, err := s.SetMaintenance(c.ctx, &lofamov1.SetMaintenanceRequest{Nodes: []string{"n0-0-0"}, Reason: "new fan"})
		if status.Code(err) != c.code || o.calls != c.calls {
			t.Errorf("%s: %v after %d calls: want %s after %d", name, err, o.calls, c.code, c.calls)
		}
		if top, err := s.GetTopology(asOperator(t), &lofamov1.GetTopologyRequest{}); err != nil || top.GetDims() != "2x1x1" {
			t.Errorf("%s: %v, %v: want the copy of the topology", name, top, err)
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
