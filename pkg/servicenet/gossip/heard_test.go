package gossip

import (
	"testing"
	"time"
)

// OnHeard may call the member, also after a packet that memberlist handles under its lock: the first from another member.
func TestOnHeardMayCallTheMember(t *testing.T) {
	quiet := Timing{ProbeInterval: time.Hour, GossipInterval: 10 * time.Millisecond, PushPullInterval: time.Hour}
	started, called := make(chan *member, 1), make(chan error, 100)
	near := startConfig(t, Config{Name: "near", Key: key(1), Timing: quiet, OnHeard: func(time.Time) {
		m := <-started
		started <- m
		called <- m.Loop([]byte("probe"))
	}})
	started <- near
	startKeys(t, "far", [][]byte{key(1)}, quiet, near)
	select {
	case err := <-called:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(bound):
		t.Error("the call does not return")
	}
}
