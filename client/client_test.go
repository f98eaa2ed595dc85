package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

func dial(t *testing.T, dir string, targets ...string) *client.Client {
	t.Helper()
	return dialWithin(t, bound, dir, targets...)
}

// dialWithin is dial with a time limit for each try.
func dialWithin(t *testing.T, try time.Duration, dir string, targets ...string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Targets: targets, TLS: clienttest.ClientTLS(t, dir), TryTimeout: try})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// bound limits one try, and a whole call. It is far longer than even a busy machine needs.
const bound = time.Minute

// deadAddress returns an address without a listener.
func deadAddress(t *testing.T) string {
	t.Helper()
	return freeport.Addr(t).String()
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*bound)
	t.Cleanup(cancel)
	return ctx
}

func TestNewRefuses(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	tls := clienttest.ClientTLS(t, dir)
	for want, cfg := range map[string]client.Config{
		"no supervisor address": {TLS: tls},
		"want host:port":        {TLS: tls, Targets: []string{"nowhere"}},
		"mutual TLS":            {Targets: []string{"127.0.0.1:1"}},
	} {
		if _, err := client.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
}

func TestAsksTheNextSupervisor(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	m.Nodes.Nodes = []*lofamov1.Node{{Id: "n0-0-0", Coord: "0,0,0"}}
	s := clienttest.Serve(t, dir, m)
	c := dial(t, dir, deadAddress(t), s.Address)
	if n, err := c.GetNode(bounded(t), "0,0,0"); err != nil || n.GetId() != "n0-0-0" {
		t.Fatalf("GetNode = %v, %v", n, err)
	}
	// A refusal is an answer: the client tries no other supervisor.
	if _, err := c.GetNode(bounded(t), "9,9,9"); status.Code(err) != codes.NotFound {
		t.Fatalf("GetNode of none: %v", err)
	}
}

func TestSaysWhatWasTried(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	s := clienttest.Serve(t, dir, clienttest.NewMap())
	s.Refuse(status.Error(codes.Unavailable, "no leader"))
	dead := deadAddress(t)
	_, err := dial(t, dir, dead, s.Address).ListSupervisors(bounded(t))
	var none *client.NoAnswerError
	if !errors.As(err, &none) || len(none.Tried) != 2 {
		t.Fatalf("error %v", err)
	}
	for _, want := range []string{dead, "connection refused", s.Address, "no leader"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "rpc error") {
		t.Errorf("error %q speaks gRPC", err)
	}
}

// TestChangeWithoutLeaderFailsWithOneSentence: without a leader, a change fails with one sentence that says so, unless
// a supervisor may already have made the change.
func TestChangeWithoutLeaderFailsWithOneSentence(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	st, err := status.New(codes.Unavailable, "no leader: nothing was changed").WithDetails(&errdetails.ErrorInfo{Reason: "NO_LEADER",
		Domain: "lofamo"})
	if err != nil {
		t.Fatal(err)
	}
	noLeader, cut := st.Err(), status.Error(codes.Unavailable, "error reading from server: EOF")
	st, err = status.New(codes.Unavailable, "no quorum: nothing was changed").WithDetails(&errdetails.ErrorInfo{Reason: "NOTHING_CHANGED",
		Domain: "lofamo"})
	if err != nil {
		t.Fatal(err)
	}
	unread := st.Err()
	for name, c := range map[string]struct {
		says [2]error
		want string
	}{
		"both say so":               {[2]error{noLeader, noLeader}, "rpc error: code = Unavailable desc = no leader: nothing was changed"},
		"one is not reached":        {[2]error{nil, noLeader}, "rpc error: code = Unavailable desc = no leader: nothing was changed"},
		"one cannot read its store": {[2]error{unread, noLeader}, "rpc error: code = Unavailable desc = no leader: nothing was changed"},
		"neither can":               {[2]error{noLeader, unread}, "rpc error: code = Unavailable desc = no quorum: nothing was changed"},
		"one was cut off":           {[2]error{noLeader, cut}, "SECOND did not confirm the change (error reading from server: EOF): it may"},
	} {
		var targets []string
		for _, says := range c.says {
			if says == nil {
				targets = append(targets, deadAddress(t))
				continue
			}
			s := clienttest.Serve(t, dir, clienttest.NewMap())
			s.Operators.Errs = []error{says}
			targets = append(targets, s.Address)
		}
		_, err := dial(t, dir, targets...).SetMaintenance(bounded(t), &lofamov1.SetMaintenanceRequest{})
		if want := strings.ReplaceAll(c.want, "SECOND", targets[1]); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

func TestStrangersAreRefused(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	clienttest.PKI(t, dir)
	clienttest.PKI(t, other)
	s := clienttest.Serve(t, dir, clienttest.NewMap())
	_, err := dial(t, other, s.Address).ListSupervisors(bounded(t))
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Fatalf("a foreign authority: %v", err)
	}
}

func TestAStaleAnswerIsTheLastResort(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	stale, fresh := clienttest.NewMap(), clienttest.NewMap()
	stale.Nodes.Cluster = &lofamov1.ClusterInfo{Stale: true, Dims: "2x1x1"}
	fresh.Nodes.Cluster = &lofamov1.ClusterInfo{Dims: "2x1x1"}
	stale.Nodes.Nodes = []*lofamov1.Node{{Id: "a", Stale: new(true)}}
	fresh.Nodes.Nodes = []*lofamov1.Node{{Id: "a"}}
	a, b := clienttest.Serve(t, dir, stale), clienttest.Serve(t, dir, fresh)
	a.Operators.Masks, b.Operators.Masks = &lofamov1.ListMasksResponse{Stale: true}, &lofamov1.ListMasksResponse{}
	for _, want := range []bool{false, true} {
		c := dial(t, dir, a.Address, b.Address)
		if r, err := c.ListNodes(bounded(t), &lofamov1.ListNodesRequest{}); err != nil || r.GetCluster().GetStale() != want {
			t.Fatalf("nodes: %v, %v: want stale %t", r, err, want)
		}
		c = dial(t, dir, a.Address, b.Address)
		if n, err := c.GetNode(bounded(t), "a"); err != nil || n.GetStale() != want {
			t.Fatalf("node: %v, %v: want stale %t", n, err, want)
		}
		c = dial(t, dir, a.Address, b.Address)
		if r, err := c.ListMasks(bounded(t)); err != nil || r.GetStale() != want {
			t.Fatalf("masks: %v, %v: want stale %t", r, err, want)
		}
		b.Stop()
	}
}

// TestWatchGoesOnAcrossReplicas commits while replicas fail in turn, and expects every change once.
func TestWatchGoesOnAcrossReplicas(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	var servers []*clienttest.Server
	var targets []string
	for range 3 {
		s := clienttest.Serve(t, dir, m)
		s.CutWatchesAfter(2)
		servers, targets = append(servers, s), append(targets, s.Address)
	}
	c := dial(t, dir, targets...)
	const last = 60
	var got []uint64
	started := make(chan struct{}, 100)
	opts := client.WatchOptions{Progress: func(_ string, err error) {
		if err == nil {
			started <- struct{}{}
		}
	}}
	go func() {
		<-started
		for rev := uint64(2); rev <= last; rev++ {
			m.Commit(rev, &lofamov1.Event{Node: fmt.Sprintf("n%d", rev)})
			if rev == 30 {
				servers[1].Stop()
			}
		}
	}()
	err := c.Watch(bounded(t), opts, func(r *lofamov1.WatchResponse) error {
		got = append(got, r.GetRevision())
		if r.GetRevision() == last {
			return client.ErrStop
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, rev := range got {
		if rev != uint64(i+2) {
			t.Fatalf("answers %v: want 2 to %d in order", got, last)
		}
	}
	if len(got) != last-1 {
		t.Fatalf("%d answers: want %d", len(got), last-1)
	}
}

func TestWatchFromARevision(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	for rev := uint64(2); rev <= 6; rev++ {
		m.Commit(rev, &lofamov1.Event{Node: "n"})
	}
	c := dial(t, dir, clienttest.Serve(t, dir, m).Address)
	var got []uint64
	err := c.Watch(bounded(t), client.WatchOptions{After: 3}, func(r *lofamov1.WatchResponse) error {
		if got = append(got, r.GetRevision()); len(got) == 3 {
			return client.ErrStop
		}
		return nil
	})
	if err != nil || fmt.Sprint(got) != "[4 5 6]" {
		t.Fatalf("%v, %v", got, err)
	}
	m.Compact(5)
	err = c.Watch(bounded(t), client.WatchOptions{After: 3}, func(*lofamov1.WatchResponse) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "list again") || !strings.Contains(err.Error(), "revision 3") {
		t.Fatalf("watch of a compacted revision: %v", err)
	}
}

func TestWatchEnds(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	s := clienttest.Serve(t, dir, m)
	m.Commit(2, &lofamov1.Event{})
	own := errors.New("my own")
	c := dial(t, dir, s.Address)
	if err := c.Watch(bounded(t), client.WatchOptions{After: 1}, func(*lofamov1.WatchResponse) error { return own }); !errors.Is(err, own) {
		t.Errorf("the handler's error came back as %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	err := c.Watch(ctx, client.WatchOptions{After: 1}, func(*lofamov1.WatchResponse) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled watch: %v", err)
	}
	var none *client.NoAnswerError
	err = dial(t, dir, deadAddress(t)).Watch(bounded(t), client.WatchOptions{After: 1}, nil)
	if !errors.As(err, &none) {
		t.Errorf("nobody there: %v", err)
	}
	s.Refuse(status.Error(codes.PermissionDenied, "role node may not watch"))
	err = c.Watch(bounded(t), client.WatchOptions{After: 1}, nil)
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("refused: %v", err)
	}
}

// TestInitialMapOnce: if a supervisor fails during the map, the client requests the map again at the next one, and
// delivers it whole.
func TestInitialMapOnce(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	m.Initial = []*lofamov1.Event{{Node: "a"}, {Node: "b"}, {Node: "c"}}
	m.Commit(7, &lofamov1.Event{Node: "old"})
	falls, good := clienttest.Serve(t, dir, m), clienttest.Serve(t, dir, m)
	falls.CutWatchesAfter(2)
	c := dial(t, dir, falls.Address, good.Address)
	var got []string
	err := c.Watch(bounded(t), client.WatchOptions{Initial: true, Labels: "rack=r7", Fields: "to=FAILED"},
		func(r *lofamov1.WatchResponse) error {
			for _, ev := range r.GetEvents() {
				got = append(got, ev.GetNode())
			}
			got = append(got, fmt.Sprint(r.GetRevision(), r.GetSynced()))
			if r.GetSynced() {
				m.Commit(8, &lofamov1.Event{Node: "d"})
				good.Refuse(status.Error(codes.Unavailable, "cut"))
				good.Refuse(nil)
				return nil
			}
			return client.ErrStop
		})
	if err != nil || strings.Join(got, " ") != "a b c 7 true d 8 false" {
		t.Errorf("%q, %v", got, err)
	}
	for _, req := range good.Asked() {
		if w, ok := req.(*lofamov1.WatchRequest); ok && (w.GetLabelSelector() != "rack=r7" || w.GetFieldSelector() != "to=FAILED" ||
			w.GetInitial() != (w.GetAfterRevision() == 0)) {
			t.Errorf("%v", w)
		}
	}
}

// TestPagesAreJoined: and a list whose pages expire is begun again as one.
func TestPagesAreJoined(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	for i := range 5 {
		m.Nodes.Nodes = append(m.Nodes.Nodes, &lofamov1.Node{Id: fmt.Sprint(i)})
		m.Links.Links = append(m.Links.Links, &lofamov1.Link{Node: fmt.Sprint(i)})
	}
	s := clienttest.Serve(t, dir, m)
	c := dial(t, dir, s.Address)
	for _, expire := range []bool{false, true} {
		for _, chunk := range []uint32{0, 1, 2, 5, 9} {
			if expire {
				s.ExpirePages()
			}
			nodes, err := c.AllNodes(bounded(t), &lofamov1.ListNodesRequest{}, chunk)
			if err != nil || len(nodes.GetNodes()) != 5 || nodes.GetContinue() != "" || nodes.GetNodes()[4].GetId() != "4" {
				t.Errorf("by %d: %v, %v", chunk, nodes, err)
			}
			links, err := c.AllLinks(bounded(t), &lofamov1.ListLinksRequest{}, chunk)
			if err != nil || len(links.GetLinks()) != 5 || links.GetContinue() != "" || links.GetLinks()[4].GetNode() != "4" {
				t.Errorf("by %d: %v, %v", chunk, links, err)
			}
		}
	}
}
