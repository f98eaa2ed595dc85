package replica

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

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

// TestHungPeerClosesWithoutBlockingOthers: while the connection to a removed replica that no longer reads is closed, which takes
// gRPC 5 s, readers get the connections to the other replicas.
func TestHungPeerClosesWithoutBlockingOthers(t *testing.T) {
	p, err := Dial(map[string]string{"s2": "127.0.0.1:2"}, func(string) (*tls.Config, error) {
		return &tls.Config{MinVersion: tls.VersionTLS13}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	p.peers["s1"] = peer{"hung", hung(t), new(atomic.Bool)}
	changed, closed := p.Changed(), make(chan error, 1)
	go func() { closed <- p.Set(map[string]string{"s2": "127.0.0.1:2"}) }()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for p.Conn("s1") != nil {
			time.Sleep(time.Millisecond)
		}
		<-changed
	}()
	select {
	case <-read:
		if len(closed) > 0 {
			t.Error("the connection was closed at once: this test shows nothing")
		}
	case err := <-closed:
		t.Errorf("readers had to wait until the connection was closed: %v", err)
		closed <- err
	}
	if p.Conn("s2") == nil {
		t.Error("there is no connection to s2")
	}
	if err := errors.Join(<-closed, p.Close()); err != nil {
		t.Error(err)
	}
}

// hung returns a connection to a replica that reads nothing, while data for the replica wait to be sent.
func hung(t *testing.T) *grpc.ClientConn {
	t.Helper()
	ln, waiting := bufconn.Listen(hungReads), make(chan struct{})
	waits := sync.OnceFunc(func() { close(waiting) })
	t.Cleanup(func() { _ = ln.Close() })
	conn, err := grpc.NewClient("passthrough:///hung", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := ln.DialContext(ctx)
			return hungConn{c, waits}, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if c, err := ln.Accept(); err == nil {
			_, _ = c.Write([]byte{3: 4, 8: 0}) // an empty SETTINGS frame of HTTP/2: now it is connected
		}
	}()
	s, err := lofamov1.NewReplicaClient(conn).Forward(t.Context())
	if err == nil {
		err = s.Send(&lofamov1.ForwardRequest{Envelope: make([]byte, 8*hungReads)})
	}
	if err != nil {
		t.Fatal(err)
	}
	<-waiting
	return conn
}

// hungReads is the number of bytes that the machine of a hung replica accepts.
const hungReads = 1 << 10

// hungConn calls a function before each write that blocks.
type hungConn struct {
	net.Conn

	waits func()
}

func (c hungConn) Write(b []byte) (int, error) {
	if len(b) > hungReads {
		c.waits()
	}
	return c.Conn.Write(b)
}
