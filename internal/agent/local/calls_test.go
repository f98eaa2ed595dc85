package local_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// The limits that these tests expect.
const (
	connsOfAll, connsOfUser = 896, 512 // without root's part
	callsOfAll, callsOfUser = 1344, 768
)

// intruder is a connection whose calls never send their request.
type intruder struct {
	net.Conn

	frames *http2.Framer
	next   uint32
}

// intrude connects, and returns nil if the server closes the connection at once.
func intrude(path string) (*intruder, error) {
	c, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	i := &intruder{Conn: c, frames: http2.NewFramer(c, c), next: 1}
	i.frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = c.SetDeadline(time.Now().Add(bound))
	if _, err := io.WriteString(c, http2.ClientPreface); err == nil {
		_ = i.frames.WriteSettings()
	}
	if _, err := i.frames.ReadFrame(); err != nil { // the server's settings
		return nil, c.Close() // refused
	}
	return i, i.frames.WriteSettingsAck()
}

// call opens a stream without a request.
func (i *intruder) call(method string, more ...string) error {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	fields := append([]string{":method", "POST", ":scheme", "http", ":path", method, ":authority", "x", "content-type", "application/grpc",
		"te", "trailers"}, more...)
	for k := 0; k < len(fields); k += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: fields[k], Value: fields[k+1], Sensitive: true})
	}
	i.next += 2
	return i.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: i.next, BlockFragment: block.Bytes(), EndHeaders: true})
}

// statuses counts the codes with which n calls end.
func (i *intruder) statuses(n int) (map[codes.Code]int, error) {
	out := map[codes.Code]int{}
	for n > 0 {
		f, err := i.frames.ReadFrame()
		if err != nil {
			return out, fmt.Errorf("%d calls have not ended, after %v: %w", n, out, err)
		}
		if h, ok := f.(*http2.MetaHeadersFrame); ok {
			for _, field := range h.Fields {
				if field.Name == "grpc-status" {
					c, _ := strconv.Atoi(field.Value)
					out[codes.Code(c)]++
					n--
				}
			}
		}
	}
	return out, nil
}

// occupy opens connections, and on the first one calls, and reports the number of connections that stay, and the codes of the calls that
// must end at once.
func occupy(path string, conns, calls, end int, method string) string {
	var first *intruder
	kept := 0
	for range conns {
		i, err := intrude(path)
		if err != nil {
			return err.Error()
		}
		if i == nil {
			continue
		}
		if kept++; first == nil {
			first = i
		}
	}
	for range calls {
		if err := first.call(method); err != nil {
			return err.Error()
		}
	}
	ended, err := first.statuses(end)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d connections, ended %v", kept, ended)
}

// occupyAs occupies a socket as another user until the test ends, and returns the report.
func occupyAs(t *testing.T, uid uint32, path string, conns, calls, end int, method string) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", another, "occupy", path, strconv.Itoa(conns), strconv.Itoa(calls), strconv.Itoa(end), method)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 20_000 + uid}}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// asOccupier is the other user's process: it ends with its standard input.
func asOccupier(path string, args []string) {
	n := func(k int) int { v, _ := strconv.Atoi(args[k]); return v }
	fmt.Println(occupy(path, n(0), n(1), n(2), args[3]))
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// Two users who open all that they can leave room for root, whichever call they make.
func TestUsersLeaveRoomForRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		requirements.Missing(t, "only root can be somebody else")
	}
	w := newCluster(t, config.DefaultAgent().Jobs, "a")
	const more = 100
	for _, tc := range []struct {
		uid         uint32
		conns, keep int
		calls       int
	}{
		{1001, connsOfUser + more, connsOfUser, callsOfUser},
		{1002, connsOfUser, connsOfAll - connsOfUser, callsOfAll - callsOfUser},
	} {
		want := fmt.Sprintf("%d connections, ended map[ResourceExhausted:%d]", tc.keep, more)
		got := occupyAs(t, tc.uid, w.sockets["a"], tc.conns, tc.calls+more, more, lofamov1.Local_WatchFaults_FullMethodName)
		if got != want {
			t.Errorf("uid %d: %s, want %s", tc.uid, got, want)
		}
	}
	for _, what := range []string{"faults", "watch", "raise", "barrier"} {
		if got := as(t, 0, nil, what, w.sockets["a"]); got != "OK" {
			t.Errorf("%s by root: %s", what, got)
		}
	}
}

// knock is intrude for one connection that the server accepts.
func knock(t *testing.T, path string) *intruder {
	t.Helper()
	i, err := intrude(path)
	if err != nil || i == nil {
		t.Fatalf("connection to %s: %v, %v", path, i, err)
	}
	t.Cleanup(func() { _ = i.Close() })
	return i
}

func wantEnds(t *testing.T, i *intruder, n int, want ...codes.Code) {
	t.Helper()
	got, err := i.statuses(n)
	for _, c := range want {
		n -= got[c]
	}
	if err != nil || n != 0 {
		t.Errorf("calls ended with %v, %v: want %v", got, err, want)
	}
}

// A user without the right to watch holds no calls, with or without a deadline.
func TestCallWithoutRightEndsBeforeItsRequest(t *testing.T) {
	c := config.DefaultAgent().Jobs
	c.Watch = nil
	w := newCluster(t, c, "a")
	i := knock(t, w.sockets["a"])
	const n = 50
	for range n {
		err := i.call(lofamov1.Local_WatchFaults_FullMethodName)
		if err == nil {
			err = i.call(lofamov1.Local_WatchEureka_FullMethodName, "grpc-timeout", "99999999H")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	wantEnds(t, i, 2*n, codes.PermissionDenied)
}

// A call whose request does not arrive ends.
func TestCallWithoutRequestEnds(t *testing.T) {
	t.Parallel()
	w := newCluster(t, config.DefaultAgent().Jobs, "a")
	i := knock(t, w.sockets["a"])
	const n = 20
	for k := range n {
		method := lofamov1.Local_WatchFaults_FullMethodName
		if k%2 == 0 {
			method = lofamov1.Local_Barrier_FullMethodName
		}
		if err := i.call(method); err != nil {
			t.Fatal(err)
		}
	}
	wantEnds(t, i, n, codes.DeadlineExceeded, codes.Canceled) // gRPC's code if it has begun to read
}

// A connection closes when its user calls too often.
func TestTooFrequentCallsCloseConnection(t *testing.T) {
	_, _, path := serve(t)
	i := knock(t, path)
	go func() {
		for i.call("/lofamo.v1.Local/Unknown") == nil { // which needs no other limit
		}
	}()
	for {
		if _, err := i.frames.ReadFrame(); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("calls without end: %v", err)
		} else if err != nil {
			break
		}
	}
}
