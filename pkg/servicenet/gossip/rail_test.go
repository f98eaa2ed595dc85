package gossip

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/railtest"
)

// pair starts two members that know each other. onBroadcast is the far one's, onHeard the near one's.
func pair(t *testing.T, onBroadcast func([]byte), onHeard func(time.Time)) (near, far *Net) {
	t.Helper()
	joined := make(chan Event, 64)
	open := func(name string, change func(*Config)) *Net {
		cfg := Config{Name: name, Bind: "127.0.0.1:0", Key: key(1), Meta: Meta{Role: RoleNode, ID: name},
			Logger: slog.New(slog.DiscardHandler), Timing: quick}
		change(&cfg)
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
		return n
	}
	far = open("far", func(c *Config) { c.Meta.Role, c.OnBroadcast = RoleSupervisor, onBroadcast })
	near = open("near", func(c *Config) {
		c.Join, c.OnHeard = []string{far.Addr().String()}, onHeard
		c.OnMember = func(e Event) { joined <- e }
	})
	select {
	case <-joined:
	case <-time.After(bound):
		t.Fatal("the two did not meet")
	}
	return near, far
}

func TestGossipRailKeepsRailContract(t *testing.T) {
	railtest.Run(t, func(t *testing.T) railtest.Harness {
		reading := make(chan struct{})
		var deliver func([]byte)
		near, far := pair(t, func(b []byte) { <-reading; deliver(b) }, nil)
		closed := false
		h := railtest.Harness{
			Rail: NewRail(near), Target: "s0", Limit: servicenet.MaxDatagram,
			Read:    func(d func([]byte)) { deliver, closed = d, true; close(reading) },
			Refused: func() uint64 { return near.Stats().RateLimited },
			Lost:    func() uint64 { return near.Stats().Pruned + far.Stats().ReceiveDropped },
			Close:   func() { _ = near.Close() },
		}
		t.Cleanup(func() {
			if !closed { // the far end must not wait for ever
				h.Read(func([]byte) {})
			}
		})
		return h
	})
}

func TestRailSaysWhy(t *testing.T) {
	near, _ := pair(t, nil, nil)
	rail := NewRail(near)
	for {
		err := rail.Send("", []byte("report"))
		if err == nil {
			continue
		}
		if !errors.Is(err, ErrRateLimited) || !errors.Is(err, servicenet.ErrBusy) {
			t.Error(err)
		}
		return
	}
}

// TestMembersNoticeEachOther: members notice each other without any broadcast, not too often, and not when cut off.
func TestMembersNoticeEachOther(t *testing.T) {
	heard := make(chan time.Time, 1024)
	near, _ := pair(t, nil, func(now time.Time) { heard <- now })
	next := func() time.Time {
		t.Helper()
		select {
		case now := <-heard:
			return now
		case <-time.After(bound):
			t.Fatalf("heard nothing in %s", bound)
			return time.Time{}
		}
	}
	last := next()
	for range 5 {
		now := next()
		if d := now.Sub(last); d >= 0 && d < heardEvery { // negative: two concurrent calls arrived out of order
			t.Errorf("told twice in %s", d)
		}
		if now.After(last) {
			last = now
		}
	}
	near.Block(true)
	before := near.heardAt.Load()
	// Packets on their way may still come; after that it is quiet.
	deadline := time.Now().Add(bound)
	for still := time.Now(); time.Since(still) < 5*heardEvery; {
		if now := near.heardAt.Load(); now != before {
			before, still = now, time.Now()
		}
		if time.Now().After(deadline) {
			t.Fatal("hears others while cut off")
		}
		time.Sleep(time.Millisecond)
	}
	for len(heard) > 0 {
		<-heard
	}
	near.Block(false)
	next()
}

// TestLoneMemberHearsNobody: a member alone does not hear itself.
func TestLoneMemberHearsNobody(t *testing.T) {
	n, err := New(Config{Name: "a", Bind: "127.0.0.1:0", Key: key(1), Meta: Meta{Role: RoleNode, ID: "a"},
		Logger: slog.New(slog.DiscardHandler),
		Timing: quick, OnHeard: func(time.Time) { t.Error("heard itself") }})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.UpdateMeta(Meta{Role: RoleNode, ID: "a", Coord: "1,0,0"}); err != nil {
		t.Error(err)
	}
	if err := n.Broadcast([]byte("anybody?")); err != nil {
		t.Error(err)
	}
	waitFor(t, "the new metadata", func() bool { return len(n.Members()) == 1 && n.Members()[0].Meta.Coord == "1,0,0" })
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// bound is the longest wait for an expected event: only a failure reaches it.
const bound = time.Minute

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("waited %s for %s", bound, what)
		}
		time.Sleep(time.Millisecond)
	}
}
