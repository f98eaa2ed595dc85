package replica

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/pkg/fault"
)

type knows map[fault.NodeID]bool

func (k knows) Known(id fault.NodeID) bool { return k[id] }

func restated(node fault.NodeID, seq fault.Seq) engine.Restated {
	return engine.Restated{
		ID:    fault.ReportID{Origin: fault.Origin{Node: node, Half: fault.HalfHost}, Epoch: 5, Seq: seq},
		Words: 99, Path: fault.PathTorus, Held: time.Second, Arrived: time.Unix(100, 0),
	}
}

func TestRestatedCodec(t *testing.T) {
	sent := []engine.Restated{restated("a", 1), restated("gone", 2), restated("b", 3)}
	req := encodeRestated(sent, time.Unix(101, 0))
	known := knows{"a": true, "b": true}.Known
	now := time.Unix(500, 0)
	got, err := decodeRestated(req.GetRestated(), now, known)
	want := []engine.Restated{restated("a", 1), restated("b", 3)}
	for i := range want {
		want[i].Held, want[i].Arrived = 2*time.Second, now
	}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%v %s", err, d)
	}
	for name, spoil := range map[string]func(*lofamov1.RestatedDigest){
		"half":  func(d *lofamov1.RestatedDigest) { d.Half = 257 },
		"epoch": func(d *lofamov1.RestatedDigest) { d.Epoch = 0 },
		"seq":   func(d *lofamov1.RestatedDigest) { d.Seq = 0 },
		"words": func(d *lofamov1.RestatedDigest) { d.Words = 0 },
		"path":  func(d *lofamov1.RestatedDigest) { d.Path = 257 },
	} {
		req := encodeRestated(sent, now)
		spoil(req.GetRestated()[1])
		if _, err := decodeRestated(req.GetRestated(), now, known); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("bad %s: %v", name, err)
		}
	}
	if _, err := decodeRestated(make([]*lofamov1.RestatedDigest, engine.MaxRestated+1), now, known); err == nil {
		t.Error("too many are taken")
	}
}

// asks is an engine that wants every digest whole.
type asks struct{ got chan engine.Input }

func (asks) Leading() bool { return true }
func (asks) Lost()         {}
func (a asks) Submit(in engine.Input) bool {
	for i := range in.Restated {
		in.Requester.RequestFull([]fault.Origin{in.Restated[i].ID.Origin})
	}
	a.got <- in
	return true
}

type wanted chan fault.Origin

func (w wanted) RequestFull(origins []fault.Origin) {
	for _, o := range origins {
		w <- o
	}
}

// TestRestatedReachLeader on one stream, which requests the whole digests; the next stream starts without
// state.
func TestRestatedReachLeader(t *testing.T) {
	ln := bufconn.Listen(1 << 16)
	m := metrics.New(prometheus.NewRegistry())
	end := asks{make(chan engine.Input, 8)}
	srv := grpc.NewServer()
	lofamov1.RegisterReplicaServer(srv, &Server{Engine: end, Names: knows{"a": true}, Metrics: m})
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(srv.Stop)
	conn, err := grpc.NewClient("passthrough:///leader", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	whole := make(wanted, 8)
	f := NewForwarder(ForwarderConfig{Answerer: nobody{}, Requester: whole, Metrics: m, Logger: slog.New(slog.DiscardHandler)})
	if f.Stream() != 0 {
		t.Fatal("a stream before there is one")
	}
	var last uint64
	for range 2 {
		changed, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- f.follow(t.Context(), conn, changed) }()
		for deadline := time.Now().Add(time.Minute); f.Stream() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("no stream")
			}
		}
		if f.Stream() == last {
			t.Error("two streams of one number")
		}
		f.Restate(last, []engine.Restated{restated("a", 1)}) // for the stream before
		last = f.Stream()
		f.Restate(last, []engine.Restated{restated("a", 2)})
		select {
		case in := <-end.got:
			if len(in.Restated) != 1 || in.Restated[0].ID.Seq != 2 || in.Restated[0].Words != 99 {
				t.Errorf("the leader got %+v", in.Restated)
			}
		case <-time.After(time.Minute):
			t.Fatal("the leader got nothing")
		}
		select {
		case o := <-whole:
			if o != (fault.Origin{Node: "a", Half: fault.HalfHost}) {
				t.Errorf("wanted whole: %s", o)
			}
		case <-time.After(time.Minute):
			t.Fatal("nobody asks for the whole")
		}
		close(changed)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if f.Stream() != 0 {
			t.Error("a stream after its end")
		}
	}
}
