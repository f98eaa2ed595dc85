package bundle

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
)

// bound is the maximum wait of a test.
const bound = time.Minute

var requester = fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}

// sent is an item that the server handed to its ways.
type sent struct {
	to         bulk.Route
	supervisor string
	announce   *lofamov1.BulkAnnounce
	packet     []byte
}

// ways collects the items sent.
type ways chan sent

func (w ways) Announce(to bulk.Route, supervisor string, m *lofamov1.BulkAnnounce) {
	w <- sent{to: to, supervisor: supervisor, announce: m}
}

func (w ways) Chunk(to bulk.Route, supervisor string, packet []byte) {
	w <- sent{to: to, supervisor: supervisor, packet: bytes.Clone(packet)}
}

// world is one server and its supervisor.
type world struct {
	t        *testing.T
	dir      string
	out      ways
	server   *Server
	gathered atomic.Int32
	object   func(context.Context, uint64, io.Writer) error
	stop     func()
}

func newWorld(t *testing.T, edit func(*ServerConfig)) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), out: make(ways, 4096)}
	cfg := DefaultServerConfig()
	cfg.Origin, cfg.Dir, cfg.Ways, cfg.Logger = requester, w.dir, w.out, slog.New(slog.DiscardHandler)
	cfg.Objects = map[string]Object{"bundle": {
		Name: func(time.Time) string { return "b.tar.gz" },
		Gather: func(ctx context.Context, most uint64, o io.Writer) error {
			w.gathered.Add(1)
			return w.object(ctx, most, o)
		},
	}}
	if edit != nil {
		edit(&cfg)
	}
	var err error
	if w.server, err = NewServer(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.server.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		if ctx.Err() == nil {
			w.stop()
		}
	})
	return w
}

func (w *world) job(via string) bulk.Job {
	j := bulk.Job{Origin: requester, Object: "bundle", MaxSize: 1 << 20, Supervisor: "sup-0", ReplyTo: "192.0.2.1:7",
		Ways: []bulk.Way{{Via: via}}}
	for i := range j.Exchanges {
		_, _ = rand.Read(j.Exchanges[i].Transfer[:])
		key, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			w.t.Fatal(err)
		}
		j.Exchanges[i].Private = key
	}
	return j
}

func (w *world) deliver(m *lofamov1.Message) {
	if _, ok := Takes(m); !ok {
		w.t.Fatalf("%v is not for a server", m)
	}
	w.server.Deliver(servicenet.Opened{Msg: m, Role: servicenet.RoleSupervisor, Name: "sup-0"})
}

func (w *world) next() sent {
	w.t.Helper()
	select {
	case s := <-w.out:
		return s
	case <-time.After(bound):
		w.t.Fatal("nothing was sent")
		return sent{}
	}
}

// fetch runs a receiver to its end.
func (w *world) fetch(j bulk.Job) (data []byte, outcome bulk.Outcome, last *lofamov1.BulkAnnounce) {
	w.t.Helper()
	r, out, err := bulk.NewReceiver(time.Now(), bulk.DefaultReceiverConfig(), j)
	if err != nil {
		w.t.Fatal(err)
	}
	for deadline := time.After(bound); ; {
		if out.Restart {
			data = nil
		}
		for _, d := range out.Deliver {
			data = append(data, d...)
		}
		for _, s := range out.Send {
			w.deliver(s.Message)
		}
		if out.Outcome != nil {
			return data, *out.Outcome, last
		}
		var ev bulk.ReceiverEvent = bulk.Tick{}
		select {
		case s := <-w.out:
			if s.to != (bulk.Route{ReplyTo: j.ReplyTo, Via: j.Ways[0].Via}) || s.supervisor != "sup-0" {
				w.t.Errorf("sent to %+v of %s", s.to, s.supervisor)
			}
			ev = bulk.Arrived{Packet: s.packet, Way: j.Ways[0]}
			if s.announce != nil {
				ev, last = bulk.Announced{Message: s.announce, Way: j.Ways[0]}, s.announce
			}
		case <-time.After(time.Until(out.Wake)):
		case <-deadline:
			w.t.Fatalf("no end: %+v", r.Progress())
		}
		out = r.Step(time.Now(), ev)
		if n := len(out.Deliver); n > 0 && out.Outcome == nil {
			more := r.Step(time.Now(), bulk.Consumed{Chunks: n})
			more.Deliver = append(out.Deliver, more.Deliver...)
			more.Send = append(out.Send, more.Send...)
			out = more
		}
	}
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>8 ^ i)
	}
	return b
}

func writes(b []byte) func(context.Context, uint64, io.Writer) error {
	return func(_ context.Context, _ uint64, w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

// files returns the server's files in its directory.
func (w *world) files() []string {
	w.t.Helper()
	list, err := filepath.Glob(filepath.Join(w.dir, "*"))
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

func TestBundleArrivesByBothPaths(t *testing.T) {
	for _, via := range []string{"", "n1-0-0"} {
		w := newWorld(t, func(c *ServerConfig) { c.Sender.TorusRate = 5000 })
		want := pattern(200_001)
		w.object = func(ctx context.Context, most uint64, o io.Writer) error {
			if len(w.files()) != 0 {
				t.Error("the file has a name while it is written")
			}
			if most != 1<<20 {
				t.Errorf("at most %d bytes", most)
			}
			return writes(want)(ctx, most, o)
		}
		data, outcome, last := w.fetch(w.job(via))
		if outcome.Result != bulk.Complete || !bytes.Equal(data, want) || last.GetName() != "b.tar.gz" {
			t.Errorf("%d bytes, %+v", len(data), outcome)
		}
		w.stop()
		if left := w.files(); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	}
}

func TestFailedBundleNamesItsCause(t *testing.T) {
	gone := errors.New("there is nothing")
	for _, tc := range []struct {
		name, why string
		edit      func(*bulk.Job)
		object    func(context.Context, uint64, io.Writer) error
	}{
		{"gather fails", "there is nothing", nil, func(context.Context, uint64, io.Writer) error { return gone }},
		{"too large", "want at most 1048576", nil, writes(pattern(1<<20 + 1))},
		{"another object", "there is no such", func(j *bulk.Job) { j.Object = "passwords" }, writes(nil)},
	} {
		w := newWorld(t, nil)
		w.object = tc.object
		j := w.job("")
		if tc.edit != nil {
			tc.edit(&j)
		}
		if _, outcome, _ := w.fetch(j); outcome.Result != bulk.Refused || !strings.Contains(outcome.Why, tc.why) {
			t.Errorf("%s: %+v, want %q", tc.name, outcome, tc.why)
		}
	}
	w := newWorld(t, nil)
	if err := os.RemoveAll(w.dir); err != nil {
		t.Fatal(err)
	}
	if _, outcome, _ := w.fetch(w.job("")); outcome.Result != bulk.Refused || !strings.Contains(outcome.Why, "file of the object") {
		t.Errorf("no directory: %+v", outcome)
	}
}

// TestEmptyObjectIsCompleteAfterItsChecksum checks that an empty object is complete once its checksum is computed.
func TestEmptyObjectIsCompleteAfterItsChecksum(t *testing.T) {
	w := newWorld(t, nil)
	w.object = writes(nil)
	if data, outcome, _ := w.fetch(w.job("")); outcome.Result != bulk.Complete || len(data) != 0 {
		t.Errorf("%d bytes, %+v", len(data), outcome)
	}
}

// TestGatheringTakesTooLong checks that a slow gathering is cancelled, and that stopping does not wait for others.
func TestGatheringTakesTooLong(t *testing.T) {
	w := newWorld(t, func(c *ServerConfig) { c.Within = time.Millisecond })
	w.object = func(ctx context.Context, _ uint64, _ io.Writer) error { <-ctx.Done(); return ctx.Err() }
	if _, outcome, _ := w.fetch(w.job("")); outcome.Result != bulk.Refused || !strings.Contains(outcome.Why, "deadline") {
		t.Errorf("%+v", outcome)
	}
	w = newWorld(t, nil)
	begun := make(chan struct{})
	w.object = func(ctx context.Context, _ uint64, _ io.Writer) error { close(begun); <-ctx.Done(); return ctx.Err() }
	w.deliver(w.request(w.job("")))
	<-begun
	w.stop()
}

func (w *world) request(j bulk.Job) *lofamov1.Message {
	w.t.Helper()
	_, out, err := bulk.NewReceiver(time.Now(), bulk.DefaultReceiverConfig(), j)
	if err != nil {
		w.t.Fatal(err)
	}
	return out.Send[0].Message
}

// TestReplayedRequestGathersNothing checks that an attacker who recorded a request cannot use it to make the half gather again and
// again.
func TestReplayedRequestGathersNothing(t *testing.T) {
	w := newWorld(t, func(c *ServerConfig) { c.Again = time.Hour })
	w.object = writes(pattern(10))
	j := w.job("")
	if _, outcome, _ := w.fetch(j); outcome.Result != bulk.Complete {
		t.Fatalf("%+v", outcome)
	}
	// The first repetition is allowed, because no earlier one is recent.
	w.deliver(w.request(j))
	for w.next().announce.GetSize() == 0 { // the last message of the pull may still be in flight
	}
	done := &lofamov1.Message{Body: &lofamov1.Message_BulkPull{BulkPull: &lofamov1.BulkPull{
		Transfer: j.Exchanges[0].Transfer[:], Node: string(requester.Node), Half: lofamov1.Half(requester.Half), Done: true,
	}}}
	for range 20 {
		w.deliver(done)
		w.deliver(w.request(j))
	}
	other := w.job("") // other requests are still served
	if _, outcome, _ := w.fetch(other); outcome.Result != bulk.Complete {
		t.Fatalf("%+v", outcome)
	}
	if n := w.gathered.Load(); n != 3 {
		t.Errorf("gathered %d times, want 3", n)
	}
}

// TestOnlyFilesOfEarlierIncarnationsAreRemoved checks that an earlier incarnation's files are removed, and no others.
func TestOnlyFilesOfEarlierIncarnationsAreRemoved(t *testing.T) {
	w := newWorld(t, nil)
	for _, name := range []string{"host.bulk-abc", "dnp.bulk-abc", "registers"} {
		if err := os.WriteFile(filepath.Join(w.dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.server.sweep(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(w.files(), " "); strings.Contains(got, "host.bulk") || !strings.Contains(got, "dnp.bulk-abc") ||
		!strings.Contains(got, "registers") {
		t.Error(got)
	}
}

func TestServerRefusesInvalidRequests(t *testing.T) {
	if _, ok := Takes(&lofamov1.Message{Body: &lofamov1.Message_Again{Again: &lofamov1.Again{}}}); ok {
		t.Error("takes anything")
	}
	cfg := DefaultServerConfig()
	if _, err := NewServer(cfg); err == nil {
		t.Error("a server without an origin")
	}
	w := newWorld(t, nil)
	w.object = writes(nil)
	for range 3 * queueSize { // messages beyond the queue do not block
		w.deliver(w.request(w.job("")))
	}
	bad := w.request(w.job(""))
	bad.GetBulkRequest().Transfer = nil
	w.deliver(bad)
}

// A file that cannot be removed does not keep the server from starting: a half must start.
func TestWhatIsLeftMayStay(t *testing.T) {
	newWorld(t, func(c *ServerConfig) {
		left := filepath.Join(c.Dir, c.Origin.Half.String()+".bulk-left", "inside")
		if err := os.MkdirAll(left, 0o700); err != nil {
			t.Fatal(err)
		}
	})
}
