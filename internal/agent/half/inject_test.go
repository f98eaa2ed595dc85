package half

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
)

// pipes is a listener whose connections are pipes in memory.
type pipes struct {
	conns chan net.Conn
	ended context.Context
	end   context.CancelFunc
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended.Done():
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.end(); return nil }

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// TestServeFinishesTheLastAnswer: a server that ends returns only after a request that had begun has its answer, and after lastAnswers
// in any case.
func TestServeFinishesTheLastAnswer(t *testing.T) {
	for _, answers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			l := &pipes{conns: make(chan net.Conn)}
			l.ended, l.end = context.WithCancel(t.Context())
			release, served := make(chan struct{}), make(chan error, 1)
			go func() {
				served <- Serve(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					<-release
					WriteJSON(w, "done")
				}))
			}()
			client, server := net.Pipe()
			l.conns <- server
			if _, err := client.Write([]byte("GET / HTTP/1.1\r\nHost: half\r\n\r\n")); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			end()
			synctest.Wait()
			select {
			case err := <-served:
				t.Errorf("returned before the answer: %v", err)
			default:
			}
			if answers {
				close(release)
				r, err := http.ReadResponse(bufio.NewReader(client), nil)
				if err != nil || r.StatusCode != http.StatusOK {
					t.Fatalf("the answer: %v, %v", r, err)
				}
				_ = r.Body.Close()
			}
			if err := <-served; err != nil {
				t.Error(err)
			}
			if !answers {
				close(release)
			}
			_ = client.Close()
		})
	}
}
