package gossip

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"
)

// TestAskedMemberAnswers: in quiet gossip the asker hears a live member's answer to each question, and none from a member that is cut off.
// An unanswered question does not delay the next one.
func TestAskedMemberAnswers(t *testing.T) {
	heard := make(chan time.Time, 1024)
	quiet := Timing{ProbeInterval: time.Hour, ProbeTimeout: 10 * time.Second, GossipInterval: 10 * time.Millisecond,
		PushPullInterval: time.Hour, RejoinInterval: 100 * time.Millisecond}
	far := startKeys(t, "far", [][]byte{key(1)}, quiet)
	near := startConfig(t, Config{Name: "near", Key: key(1), Timing: quiet, OnHeard: func(now time.Time) { heard <- now }}, far)
	near.until(t, EventJoin, "far")
	for i := range 20 { // more rounds than the join has gossip left to send
		for end, answered := time.Now().Add(bound), false; !answered; {
			near.Ask(2)
			select {
			case <-heard:
				answered = true
			case <-time.After(heardEvery): // OnHeard is called at most once per heardEvery
			}
			if time.Now().After(end) {
				t.Fatalf("question %d: no answer within %s", i, bound)
			}
		}
	}
	far.Block(true)
	for range 3 {
		near.Ask(2)
		time.Sleep(heardEvery) // an answer would arrive in this time
	}
	for len(heard) > 0 {
		<-heard // sent before the cut
	}
	near.Ask(2)
	select {
	case <-heard:
		t.Error("a member that is cut off answers")
	case <-time.After(10 * heardEvery):
	}
	far.Block(false)
	for end := time.Now().Add(quiet.ProbeTimeout * 3 / 4); ; {
		near.Ask(2)
		select {
		case <-heard:
			return
		case <-time.After(heardEvery):
		}
		if time.Now().After(end) {
			t.Fatal("no answer to a question that followed an unanswered one")
		}
	}
}

// A member that ends waits neither for the answer to a question nor for a paused process that accepts its stream: its recovery daemon
// hands the node over only then.
func TestCloseWaitsForNoAnswer(t *testing.T) {
	quiet := Timing{ProbeInterval: time.Hour, ProbeTimeout: streamTimeout, GossipInterval: 10 * time.Millisecond, PushPullInterval: time.Hour}
	paused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = paused.Close() }()
	for what, begin := range map[string]func() *Net{
		"a question": func() *Net {
			far := startKeys(t, "far", [][]byte{key(1)}, quiet)
			near := startConfig(t, Config{Name: "near", Key: key(1), Timing: quiet, OnHeard: func(time.Time) {}}, far)
			near.until(t, EventJoin, "far")
			far.Block(true)
			near.Ask(1)
			for len(near.asks) > 0 {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(10 * time.Millisecond) // it is sent
			return near.Net
		},
		"a stream": func() *Net {
			n, err := New(Config{Name: "near", Bind: "127.0.0.1:0", Key: key(1), Timing: quiet, Join: []string{paused.Addr().String()},
				Meta: Meta{Role: RoleNode, ID: "near", Coord: "0,0,0", ReportAddr: "127.0.0.1:7000"}, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			c, err := paused.Accept()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return n
		},
	} {
		const tries = 5
		for try := 1; ; try++ { // a busy machine may hold one up
			n := begin()
			began := time.Now()
			if err := n.Close(); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took < streamTimeout/2 {
				break
			} else if try == tries {
				t.Errorf("the end took %s while %s waited", took, what)
				break
			}
		}
	}
}

func TestNodesAreAskedBeforeSupervisors(t *testing.T) {
	n := &Net{cfg: Config{Name: "n0"}, members: map[string]Member{"n0": {Name: "n0", Meta: Meta{Role: RoleNode}}}}
	add := func(role Role, name string) { n.members[name] = Member{Name: name, Meta: Meta{Role: role}} }
	for i := range 3 {
		add(RoleSupervisor, fmt.Sprintf("supervisor/s%d", i))
	}
	add(RoleNode, "n1")
	add(RoleNode, "n2")
	names := func(count int) (out []string) {
		for _, m := range n.pick(count) {
			out = append(out, m.Name)
		}
		return out
	}
	for range 20 { // the order is random
		if got := names(2); len(got) != 2 || slices.Contains(got, "n0") || got[0][0] != 'n' || got[1][0] != 'n' {
			t.Fatalf("two of %d: %s", len(n.members), got)
		}
		if got := names(4); len(got) != 4 || got[2][0] != 's' || got[3][0] != 's' {
			t.Fatalf("four of %d: %s", len(n.members), got)
		}
	}
	if got := names(10); len(got) != 5 {
		t.Errorf("all: %s", got)
	}
}
