package local_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/jobs"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

const bound = time.Minute

func ends(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	return ctx
}

func dial(t *testing.T, path string) *jobs.Client {
	t.Helper()
	c, err := jobs.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// api returns the bare service, for requests that the client package would not send.
func api(t *testing.T, path string) lofamov1.LocalClient {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return lofamov1.NewLocalClient(conn)
}

// hears watches a job, and returns once the watch is established.
func hears(t *testing.T, ctx context.Context, c *jobs.Client, job string) <-chan jobs.Heard {
	t.Helper()
	out, done := make(chan jobs.Heard, 1024), make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(done)
		err := c.WatchEureka(ctx, job, func(h jobs.Heard) error { out <- h; return nil })
		if ctx.Err() == nil {
			t.Errorf("watch of %s: %v", job, err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	next(t, out)
	return out
}

func next(t *testing.T, from <-chan jobs.Heard) jobs.Heard {
	t.Helper()
	select {
	case h := <-from:
		return h
	case <-time.After(bound):
		t.Fatal("nothing is heard")
		return jobs.Heard{}
	}
}

var abc = []fault.NodeID{"a", "b", "c"}

func TestEurekaReachesJobOnAllNodes(t *testing.T) {
	w := newCluster(t, config.DefaultAgent().Jobs, abc...)
	ctx := ends(t)
	a := dial(t, w.sockets["a"])
	var all []<-chan jobs.Heard
	for _, id := range abc {
		all = append(all, hears(t, ctx, dial(t, w.sockets[id]), "train"))
	}
	other := hears(t, ctx, a, "another")
	if err := a.RaiseEureka(ctx, "train", jobs.Eureka{Topic: "found", Body: []byte("42"), Priority: 3}); err != nil {
		t.Fatal(err)
	}
	if err := dial(t, w.sockets["c"]).RaiseEureka(ctx, "another", jobs.Eureka{Topic: "end"}); err != nil {
		t.Fatal(err)
	}
	for i, from := range all {
		h := next(t, from)
		if e := h.Eureka; e == nil || e.Topic != "found" || string(e.Body) != "42" || e.Node != "a" || e.Priority != 3 ||
			h.Missed != 0 || h.Again {
			t.Errorf("%s hears %+v", abc[i], h)
		}
	}
	if h := next(t, other); h.Eureka == nil || h.Eureka.Topic != "end" || h.Eureka.Node != "c" {
		t.Errorf("the other job hears %+v", h)
	}
	for i, from := range all {
		if len(from) > 0 {
			t.Errorf("%s hears more: %+v", abc[i], <-from)
		}
	}
}

func TestInvalidEurekaIsRefused(t *testing.T) {
	w := newCluster(t, config.DefaultAgent().Jobs, "a")
	ctx := ends(t)
	c := api(t, w.sockets["a"])
	raise := func(job, topic string, size int, priority uint32) error {
		_, err := c.RaiseEureka(ctx, &lofamov1.RaiseEurekaRequest{Job: job, Topic: topic, Body: make([]byte, size), Priority: priority})
		return err
	}
	for _, tc := range []struct {
		err   error
		code  codes.Code
		names string
	}{
		{raise("Train", "x", 0, 0), codes.InvalidArgument, `job: given "Train": want 1 to 63 of a-z`},
		{raise("train", "", 0, 0), codes.InvalidArgument, `topic: given "": want 1 to 32`},
		{raise("train", "x", 513, 0), codes.InvalidArgument, "body: given 513 bytes: want at most 512"},
		{raise("train", "x", 0, 4), codes.InvalidArgument, "priority: given 4: want 0 to 3"},
	} {
		if status.Code(tc.err) != tc.code || !strings.Contains(tc.err.Error(), tc.names) {
			t.Errorf("%v: want %s with %q", tc.err, tc.code, tc.names)
		}
	}
	s, err := c.WatchEureka(ctx, &lofamov1.WatchEurekaRequest{Job: "a_b"})
	if err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("watch of a_b: %v", err)
	}
	w.set(func() { w.links = 0 })
	if err := raise("train", "x", 0, 0); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "no link of this node lives") {
		t.Errorf("without a link: %v", err)
	}
	w.set(func() { w.silent = true })
	if err := raise("train", "x", 0, 0); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("with a DNP half that is silent: %v", err)
	}
	w.set(func() { w.links, w.silent = 6, false })
	last := error(nil)
	for range 1000 { // also where each takes a twentieth of a second
		if last = raise("train", "x", 0, 0); last != nil {
			break
		}
	}
	if status.Code(last) != codes.ResourceExhausted || !strings.Contains(last.Error(), "want at most 10 a second, or 20 at once") {
		t.Errorf("a thousand: %v", last)
	}
}

func TestCallWithoutDNPHalfFails(t *testing.T) {
	_, _, path := serve(t)
	err := dial(t, path).RaiseEureka(ends(t), "train", jobs.Eureka{Topic: "x"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no node was notified: "+errNoDNP.Error()) {
		t.Errorf("eureka: %v", err)
	}
	m := dial(t, path).Job(jobs.Job{Name: "train", Members: []string{"n0", "n1"}})
	if err := m.Barrier(ends(t), "step"); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "the DNP half does not answer") {
		t.Errorf("barrier: %v", err)
	}
}

// A watcher that does not read gets the newest eurekas and the number missed, and delays no other caller.
func TestSlowWatcherMissesOldEurekas(t *testing.T) {
	w := newCluster(t, config.DefaultAgent().Jobs, "a")
	ctx := ends(t)
	begun, read := make(chan struct{}), make(chan struct{})
	heard, missed := 0, uint64(0)
	done := make(chan error, 1)
	const n = 20_000
	watcher := dial(t, w.sockets["a"])
	go func() {
		done <- watcher.WatchEureka(ctx, "train", func(h jobs.Heard) error {
			if h.Eureka == nil {
				close(begun)
				<-read
				return nil
			}
			heard++
			missed += h.Missed
			if uint64(heard)+missed == n {
				return errEnough
			}
			return nil
		})
	}()
	<-begun
	for i := range n {
		w.servers["a"].Deliver(&lofamov1.JobEureka{Node: "b", Epoch: 1, Number: uint64(i + 1), Job: "train", Topic: "x", Body: make([]byte, 512)})
	}
	close(read)
	if err := <-done; !errors.Is(err, errEnough) || missed == 0 {
		t.Errorf("%d heard, %d missed: %v", heard, missed, err)
	}
}

var errEnough = errors.New("enough")

func members(ids ...fault.NodeID) (out []string) {
	for _, id := range ids {
		out = append(out, string(id))
	}
	return out
}

func TestBarrierCompletesWhenAllArrive(t *testing.T) {
	w := newCluster(t, config.DefaultAgent().Jobs, abc...)
	ctx := ends(t)
	done := make(chan error, 6)
	come := func(id fault.NodeID, participant string) {
		m := dial(t, w.sockets[id]).Job(jobs.Job{Name: "train", Members: members("c", "a", "b"), Participants: 2, Participant: participant})
		go func() { done <- m.Barrier(ctx, "step") }()
	}
	for _, id := range abc {
		come(id, "x")
	}
	come("a", "y")
	come("b", "y")
	w.awaitAsked(t, 20) // several times each
	if len(done) > 0 {
		t.Fatalf("complete without the second participant of c: %v", <-done)
	}
	come("c", "y")
	for range 6 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// One process may be all participants of its node, on one connection.
func TestOneProcessMayBeAllParticipants(t *testing.T) {
	w := newCluster(t, config.DefaultAgent().Jobs, "a")
	ctx := ends(t)
	c := dial(t, w.sockets["a"])
	const n = 256
	done := make(chan error, n)
	for i := range n {
		m := c.Job(jobs.Job{Name: "train", Members: members("a"), Participants: n, Participant: fmt.Sprint(i)})
		go func() { done <- m.Barrier(ctx, "step") }()
	}
	for range n {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// awaitAsked waits until halves have asked so often.
func (w *torus) awaitAsked(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-w.posted:
		case <-time.After(bound):
			t.Fatal("nobody asks")
		}
	}
}

func TestBarrierGenerationsAdvanceTogether(t *testing.T) {
	w := newCluster(t, config.DefaultAgent().Jobs, "a", "b")
	ctx := ends(t)
	const rounds = 100
	steps := map[fault.NodeID]*int{"a": new(int), "b": new(int)}
	done := make(chan error, 2)
	for _, id := range abc[:2] {
		m := dial(t, w.sockets[id]).Job(jobs.Job{Name: "train", Members: members("a", "b")})
		go func() {
			for range rounds {
				if err := m.Barrier(ctx, "step"); err != nil {
					done <- fmt.Errorf("%s: %w", id, err)
					return
				}
				*steps[id]++
			}
			done <- nil
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if *steps["a"] != rounds || *steps["b"] != rounds {
		t.Errorf("%d and %d", *steps["a"], *steps["b"])
	}
}

func TestBarrierEndsByTimeoutOrDeath(t *testing.T) {
	w := newCluster(t, config.DefaultAgent().Jobs, abc...)
	m := dial(t, w.sockets["b"]).Job(jobs.Job{Name: "train", Members: members(abc...)})
	all := ends(t)
	var missing *jobs.MissingError
	err := context.DeadlineExceeded
	for missing == nil && errors.Is(err, context.DeadlineExceeded) && all.Err() == nil {
		ctx, cancel := context.WithTimeout(all, 2*time.Second)
		err = m.Barrier(ctx, "late")
		cancel()
		_ = errors.As(err, &missing) // stays nil if a busy machine delays the half's answer past the deadline
	}
	if missing == nil || !slices.Equal(missing.Nodes, []string{"a", "c"}) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("late: %v", err)
	}
	w.halves["b"].set("c", lofamov1.State_FAILED)
	w.servers["b"].Changed([]fault.NodeID{"c"})
	var gone *jobs.GoneError
	if err := m.Barrier(ends(t), "gone"); !errors.As(err, &gone) || !slices.Equal(gone.Nodes, []string{"c"}) {
		t.Errorf("gone: %v", err)
	}
	w.halves["b"].set("c", lofamov1.State_NORMAL)
	w.servers["b"].Changed([]fault.NodeID{"c"})
	done := make(chan error, 1)
	cut, stop := context.WithCancel(ends(t))
	w.drain()
	go func() { done <- m.Barrier(cut, "left") }()
	w.awaitAsked(t, 1)
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("left: %v", err)
	}
}

// TestBarrierWaitsForReplacedMemberUntilDeadline: a dead member ends its barrier. Once a spare has its place it is UNKNOWN, which is no
// proof of death, and a later barrier ends at its deadline.
func TestBarrierWaitsForReplacedMemberUntilDeadline(t *testing.T) {
	w := newCluster(t, config.DefaultAgent().Jobs, abc...)
	w.halves["b"].set("c", lofamov1.State_FAILED)
	m := dial(t, w.sockets["b"]).Job(jobs.Job{Name: "train", Members: members(abc...)})
	var gone *jobs.GoneError
	if err := m.Barrier(ends(t), "before"); !errors.As(err, &gone) || !slices.Equal(gone.Nodes, []string{"c"}) {
		t.Errorf("dead: %v", err)
	}
	w.halves["b"].set("c", lofamov1.State_UNKNOWN)
	w.servers["b"].Changed([]fault.NodeID{"c"})
	req := &lofamov1.BarrierRequest{Job: "train", Name: "after", Generation: 1, Members: members(abc...),
		Wait: durationpb.New(2 * time.Second)}
	_, err := api(t, w.sockets["b"]).Barrier(ends(t), req)
	if status.Code(err) != codes.DeadlineExceeded || !strings.HasSuffix(err.Error(), "missing: a, c") {
		t.Errorf("replaced: %v", err)
	}
}

// A watch of as many nodes as a node may watch leaves room for the members of barriers, and a dead one of them ends its barrier.
func TestLargeWatchDoesNotHideDeadMember(t *testing.T) {
	w := newCluster(t, config.DefaultAgent().Jobs, abc...)
	ctx := ends(t)
	var many []string
	for i := range servicenet.MaxInterest {
		many = append(many, fmt.Sprintf("made-up-%d", i))
	}
	other, opened := dial(t, w.sockets["a"]), make(chan jobs.Faults, 16)
	go func() { _ = other.WatchFaults(ctx, many, func(f jobs.Faults) error { opened <- f; return nil }) }()
	<-opened
	done := make(chan error, 1)
	m := dial(t, w.sockets["a"]).Job(jobs.Job{Name: "train", Members: members(abc...)})
	go func() { done <- m.Barrier(ctx, "step") }()
	w.halves["a"].awaitWatch(t, func(ids []fault.NodeID) bool { return slices.Contains(ids, "a") && slices.Contains(ids, "c") })
	w.halves["a"].set("c", lofamov1.State_FAILED)
	w.servers["a"].Changed([]fault.NodeID{"c"})
	var gone *jobs.GoneError
	if err := <-done; !errors.As(err, &gone) || !slices.Equal(gone.Nodes, []string{"c"}) {
		t.Errorf("gone: %v", err)
	}
	select {
	case lost := <-opened:
		if len(lost.Nodes) != len(abc) {
			t.Errorf("the large watch learns of %d nodes without room, want %d", len(lost.Nodes), len(abc))
		}
	case <-ctx.Done():
		t.Error("the large watch does not learn which nodes have no room")
	}
}

func (h *half) set(id fault.NodeID, s lofamov1.State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.states[id] = s
}

func (w *torus) drain() {
	for len(w.posted) > 0 {
		<-w.posted
	}
}

func TestInvalidBarrierIsRefused(t *testing.T) {
	w := newCluster(t, config.DefaultAgent().Jobs, "a")
	ctx := ends(t)
	c := api(t, w.sockets["a"])
	for _, tc := range []struct {
		change func(*lofamov1.BarrierRequest)
		names  string
	}{
		{func(r *lofamov1.BarrierRequest) { r.Job = "" }, `job: given "": want 1 to 63`},
		{func(r *lofamov1.BarrierRequest) { r.Name = strings.Repeat("x", 33) }, "name: given"},
		{func(r *lofamov1.BarrierRequest) { r.Generation = 0 }, "generation: given 0: want at least 1"},
		{func(r *lofamov1.BarrierRequest) { r.Participants = 257 }, "participants: given 257: want 1 to 256"},
		{func(r *lofamov1.BarrierRequest) { r.Participant = "a/b" }, `participant: given "a/b": want 1 to 64`},
		{func(r *lofamov1.BarrierRequest) { r.Members = nil }, "members: given 0: want 1 to 1024"},
		{func(r *lofamov1.BarrierRequest) { r.Members = []string{"b"} }, "members: given 1 without this node: want a among them"},
		{func(r *lofamov1.BarrierRequest) { r.Members = []string{"a", "b", "a"} }, `members: given "a" twice`},
		{func(r *lofamov1.BarrierRequest) { r.Members = []string{"a", "b c"} }, `members: given "b c": want ids of nodes`},
		{func(r *lofamov1.BarrierRequest) { r.Wait = durationpb.New(0) }, "wait: given 0s: want 1ms to 24h"},
		{func(r *lofamov1.BarrierRequest) { r.Wait = durationpb.New(25 * time.Hour) }, "wait: given 25h"},
	} {
		r := &lofamov1.BarrierRequest{Job: "train", Name: "step", Generation: 1, Members: []string{"a", "b"}}
		tc.change(r)
		if _, err := c.Barrier(ctx, r); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("%v: want one that has %q", err, tc.names)
		}
	}
	go func() {
		_, _ = c.Barrier(ctx, &lofamov1.BarrierRequest{Job: "train", Name: "step", Generation: 1, Members: []string{"a", "b"}, Participants: 2})
	}()
	w.awaitAsked(t, 1)
	_, err := c.Barrier(ctx, &lofamov1.BarrierRequest{Job: "train", Name: "step", Generation: 1, Members: []string{"a", "b"}, Participants: 3})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "participants: given 3: want 2") {
		t.Errorf("others say 2: %v", err)
	}
}
