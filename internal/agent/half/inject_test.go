package half

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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

// TestServeEndsDespiteSilentClient: a connection that has sent nothing, for example one that a scraper keeps ready, does not delay the end.
func TestServeEndsDespiteSilentClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		l := &pipes{conns: make(chan net.Conn)}
		l.ended, l.end = context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- Serve(ctx, l, http.NotFoundHandler()) }()
		client, server := net.Pipe()
		l.conns <- server
		synctest.Wait()
		ended := time.Now()
		end()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if took := time.Since(ended); took >= lastAnswers { // of virtual time
			t.Errorf("the silent client delayed the end by %v", took)
		}
		_ = client.Close()
	})
}

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

// TestPanicInHandlerEndsProcess: net/http alone would close the connection and go on with data in an unknown state, which
// no watchdog sees.
func TestPanicInHandlerEndsProcess(t *testing.T) {
	const child = "LOFAMO_TEST_PANICS"
	if os.Getenv(child) != "" {
		l, err := net.FileListener(os.NewFile(3, "socket"))
		if err != nil {
			t.Fatal(err)
		}
		t.Fatal(Serve(t.Context(), l, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/abort" {
				panic(http.ErrAbortHandler) // only closes the connection
			}
			panic("status is damaged")
		})))
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	socket, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	bound, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	half := exec.CommandContext(bound, os.Args[0], "-test.run=^TestPanicInHandlerEndsProcess$")
	half.Env, half.ExtraFiles = append(os.Environ(), child+"=1"), []*os.File{socket}
	var words strings.Builder
	half.Stderr = &words
	if err := errors.Join(half.Start(), socket.Close()); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"/abort", "/status"} { // the process must outlive /abort to read /status
		conn, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		deadline, _ := bound.Deadline()
		if err := conn.SetDeadline(deadline); err != nil {
			t.Fatal(err)
		}
		if _, err = conn.Write([]byte("GET " + what + " HTTP/1.1\r\nHost: half\r\n\r\n")); err == nil {
			_, err = bufio.NewReader(conn).ReadByte()
		}
		if err == nil {
			t.Errorf("%s has an answer: want a closed connection", what)
		}
		_ = conn.Close()
	}
	_ = l.Close()
	var exit *exec.ExitError
	if err := half.Wait(); !errors.As(err, &exit) || bound.Err() != nil || exit.ExitCode() != 2 {
		t.Errorf("the process ended with %v: want exit code 2", err)
	}
	for _, want := range []string{"panic: status is damaged", "/status", "inject_test.go"} {
		if !strings.Contains(words.String(), want) {
			t.Errorf("the standard error output lacks %q:\n%s", want, words.String())
		}
	}
}
