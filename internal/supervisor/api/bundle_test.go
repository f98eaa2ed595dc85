package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/ingest"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	transfer "github.com/lofamo/lofamo/pkg/servicenet/bulk"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// fetcher returns an error after one piece, or waits for the context.
type fetcher struct {
	asked string
	err   error
	wait  bool
}

func (f *fetcher) Fetch(ctx context.Context, o fault.Origin, object string, most uint64,
	emit func(*lofamov1.GetBundleResponse) error) error {
	f.asked = fmt.Sprint(o, " ", object, " ", most)
	if err := emit(&lofamov1.GetBundleResponse{Data: []byte("piece")}); err != nil {
		return err
	}
	if f.wait {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return f.err
}

func (h *harness) bundle(t *testing.T, req *lofamov1.GetBundleRequest) (data string, outcome []string, err error) {
	t.Helper()
	s, err := h.client.GetBundle(t.Context(), req)
	if err != nil {
		return "", nil, err
	}
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return data, nil, nil
		}
		if err != nil {
			return data, s.Trailer().Get(OutcomeKey), err
		}
		data += string(r.GetData())
	}
}

func TestBundleIsFetchedForNodeOrPlace(t *testing.T) {
	f := &fetcher{}
	h := serveBundles(t, f)
	for _, tc := range []struct {
		req  *lofamov1.GetBundleRequest
		want string
	}{
		{&lofamov1.GetBundleRequest{Node: "a"}, "a/host bundle 67108864"},
		{&lofamov1.GetBundleRequest{Node: "1,0,0", Half: "dnp", MaxBytes: 70000}, "b/dnp bundle 70000"},
	} {
		if data, _, err := h.bundle(t, tc.req); err != nil || data != "piece" || f.asked != tc.want {
			t.Errorf("%v: %q, %v, asked for %q, want %q", tc.req, data, err, f.asked, tc.want)
		}
	}
	for _, tc := range []struct {
		req  *lofamov1.GetBundleRequest
		code codes.Code
		text string
	}{
		{&lofamov1.GetBundleRequest{Node: "c"}, codes.NotFound, `node "c"`},
		{&lofamov1.GetBundleRequest{}, codes.InvalidArgument, "empty name"},
		{&lofamov1.GetBundleRequest{Node: "a", Half: "both"}, codes.InvalidArgument, `half: given "both"`},
		{&lofamov1.GetBundleRequest{Node: "a", MaxBytes: 64<<20 + 1}, codes.InvalidArgument, "max_bytes: given 67108865"},
	} {
		_, _, err := h.bundle(t, tc.req)
		refused(t, fmt.Sprint(tc.req), err, tc.code, tc.text)
	}
}

func TestErrorOfEachBundleEnd(t *testing.T) {
	f := &fetcher{}
	h := serveBundles(t, f)
	outcome := func(r transfer.Result, why string) error { return &ingest.OutcomeError{Result: r, Why: why} }
	for _, tc := range []struct {
		err     error
		code    codes.Code
		outcome bool
	}{
		{outcome(transfer.Timeout, "silence"), codes.Unavailable, true},
		{outcome(transfer.DataLoss, "sums"), codes.DataLoss, true},
		{outcome(transfer.Refused, "disk full"), codes.FailedPrecondition, true},
		{outcome(transfer.Refused, transfer.BusyPrefix+"2"), codes.ResourceExhausted, true},
		{outcome(transfer.Cancelled, "by itself"), codes.Canceled, true},
		{outcome(0, "?"), codes.Internal, true},
		{fmt.Errorf("%w: 4", ingest.ErrBulkBusy), codes.ResourceExhausted, false},
		{fmt.Errorf("bundle: %w", ingest.ErrBulkSlow), codes.DeadlineExceeded, true},
		{context.DeadlineExceeded, codes.DeadlineExceeded, false},
		{status.Error(codes.Aborted, "x"), codes.Aborted, false},
		{errors.New("no entropy"), codes.Unknown, false},
	} {
		f.err = tc.err
		_, trailer, err := h.bundle(t, &lofamov1.GetBundleRequest{Node: "a"})
		if status.Code(err) != tc.code || len(trailer) > 0 != tc.outcome {
			t.Errorf("%v: %v and the trailer %v, want %s, %t", tc.err, err, trailer, tc.code, tc.outcome)
		}
	}
	f.wait = true
	s, err := h.client.GetBundle(t.Context(), &lofamov1.GetBundleRequest{Node: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	close(h.stopping)
	_, err = s.Recv()
	refused(t, "stopping", err, codes.Unavailable, "stopping")
}

func TestOperatorMethodsRefuseOtherRoles(t *testing.T) {
	for _, method := range []string{
		lofamov1.FaultSupervisor_GetBundle_FullMethodName, lofamov1.FaultSupervisor_ApplyTopology_FullMethodName,
		lofamov1.FaultSupervisor_SetMaintenance_FullMethodName, lofamov1.FaultSupervisor_EndMaintenance_FullMethodName,
	} {
		for _, role := range pki.Roles() {
			want := role == pki.RoleOperator || role == pki.RoleSupervisor
			if got := slices.Contains(rights(method), role); got != want {
				t.Errorf("%s may call %s: %t, want %t", role, method, got, want)
			}
		}
	}
}

func serveBundles(t *testing.T, b Bundles) *harness {
	t.Helper()
	h := &harness{stopping: make(chan struct{})}
	h.connect(t, Config{
		Names: view.NewNames(grid.Dims{X: 2, Y: 1, Z: 1}, map[grid.Coord]fault.NodeID{{}: "a", {X: 1}: "b"}), Engine: follower{},
		Directory: alone{}, Bundles: b, Metrics: metrics.New(prometheus.NewRegistry()), Stopping: h.stopping,
	})
	return h
}
