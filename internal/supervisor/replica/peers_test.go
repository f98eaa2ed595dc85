package replica

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/connectivity"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// TestPeersComeAndGo: connections follow the list of replicas, and waiting callers are woken.
func TestPeersComeAndGo(t *testing.T) {
	p, err := Dial(map[string]string{"s1": "127.0.0.1:1", "s2": "127.0.0.1:2"}, func(id string) (*tls.Config, error) {
		if id == "bad" {
			return nil, errors.New("no such certificate")
		}
		return &tls.Config{MinVersion: tls.VersionTLS13}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
	kept, moved, changed := p.Conn("s1"), p.Conn("s2"), p.Changed()
	if p.Conn("s3") != nil || p.State("s3") != lofamov1.State_UNKNOWN {
		t.Error("there is a connection to nobody")
	}
	err = p.Set(map[string]string{"s1": "127.0.0.1:1", "s2": "127.0.0.1:3", "s3": "127.0.0.1:4", "bad": "127.0.0.1:5"})
	if err == nil || !strings.Contains(err.Error(), "connect to supervisor bad at 127.0.0.1:5") {
		t.Errorf("one that cannot be connected to: %v", err)
	}
	<-changed
	if p.Conn("s1") != kept || p.Conn("s2") == moved || p.Conn("s3") == nil || p.Conn("bad") != nil {
		t.Error("the connections are not those that were set")
	}
	if moved.GetState() != connectivity.Shutdown {
		t.Errorf("the connection to the old address is %s", moved.GetState())
	}
	changed = p.Changed()
	if err := p.Set(map[string]string{"s1": "127.0.0.1:1", "s2": "127.0.0.1:3", "s3": "127.0.0.1:4"}); err != nil {
		t.Error(err)
	}
	select {
	case <-changed:
		t.Error("nothing has changed, and somebody is told so")
	default:
	}
	cancel()
	<-ended
	if err := p.Close(); err != nil || kept.GetState() != connectivity.Shutdown {
		t.Errorf("after closing: %v, %s", err, kept.GetState())
	}
}
