package gossip

import (
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/attempts"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// TestFloodOfStrangersDoesNotDelayMembers sends 20,000 packets of strangers to a member that reads 500 packets in a
// second: no member suspects it, and the broadcasts of another member arrive. On a busy machine a member may not get a
// processor in time, so the test passes if one of several floods does no harm.
func TestFloodOfStrangersDoesNotDelayMembers(t *testing.T) {
	attempts.One(t, 5, "no member is held for dead", func() bool { return floodLeavesMembers(t) })
}

// TestFloodOfStreamsIsDropped floods a member with streams of a stranger: the kernel drops most of them, and those of a member's address
// get in.
func TestFloodOfStreamsIsDropped(t *testing.T) {
	requirements.ListenerFilter(t)
	a := startConfig(t, Config{Name: "a", Key: key(1), Timing: calm, MaxPackets: 500, Strangers: 200})
	b := start(t, "b", key(1), a)
	a.until(t, EventJoin, "b")
	dial := func(from string) bool {
		d := net.Dialer{Timeout: 50 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", a.Addr().String())
		if err != nil {
			return false
		}
		return c.Close() == nil
	}
	const tries, most = 4000, 1000
	var left, taken atomic.Int64
	left.Store(tries)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if dial("127.0.0.2") {
					taken.Add(1)
				}
			}
		})
	}
	await(t, "the kernel filters", func() bool { return a.transport.doors.Flooded() })
	await(t, "a stream of a member's address gets in", func() bool { return dial(b.Addr().Addr().String()) })
	wg.Wait()
	t.Logf("%d of %d streams of a stranger were taken", taken.Load(), tries)
	if n := taken.Load(); n > most {
		t.Errorf("%d of %d streams of a stranger were taken: want at most %d", n, tries, most)
	}
}

// floodLeavesMembers runs one flood, and reports whether no member was declared dead.
func floodLeavesMembers(t *testing.T) bool {
	t.Helper()
	a := startQuick(t, "a")
	b := &member{events: make(chan Event, 256), broadcasts: make(chan string, 256)}
	var err error
	b.Net, err = New(Config{
		Name: "b", Bind: "127.0.0.1:0", Key: key(1), Join: []string{a.Addr().String()},
		Meta: Meta{Role: RoleNode, ID: "b", Coord: "1,0,0", ReportAddr: "127.0.0.1:7001"}, Logger: slog.New(slog.DiscardHandler),
		OnMember: func(e Event) { b.events <- e }, OnBroadcast: func(m []byte) { b.broadcasts <- string(m) },
		Timing: quick, MaxPackets: 500, Strangers: 50,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	a.until(t, EventJoin, "b")
	b.until(t, EventJoin, "a")
	stranger, err := net.Dial("udp4", b.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Close() }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	const flood, each = 40_000, 2000
	begin := time.Now()
	for sent := 0; sent < flood; {
		<-tick.C
		for due := min(flood, int(20*time.Since(begin).Milliseconds())); sent < due; sent++ {
			_, _ = stranger.Write([]byte("a packet that no key opens"))
			if sent%each != 0 {
				continue
			}
			said := fmt.Sprint(sent)
			if err := a.Broadcast([]byte(said)); err != nil {
				t.Fatal(err)
			}
			if got := b.broadcast(t); got != said {
				t.Fatalf("received %q, want %q", got, said)
			}
		}
	}
	t.Logf("%d packets of a stranger in %s: %d reached the reader beyond its budget", flood, time.Since(begin), b.Stats().Strangers)
	for {
		select {
		case e := <-a.events:
			if e.Kind == EventFail {
				t.Logf("%s is held for dead", e.Member.Name)
				return false
			}
		default:
			return true
		}
	}
}

// await waits for a condition.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(bound); !holds(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", bound, what)
		}
	}
}
