package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// The attack: requests that are announced with unfinishedBytes and never end, over some connections.
const (
	unfinishedStreams = 4096
	unfinishedBytes   = 32<<20 - 1
	attackConns       = 8
	attackTime        = 4 * time.Second
	attackVolume      = 3 << 30 // bytes; a machine of 4 GiB survives the attack on a server without bounds
	maxGrowth         = 64 << 20
)

// TestUnfinishedRequestsDoNotExhaustMemory attacks a real supervisor process with one certificate and 4,096 requests
// of 32 MiB that never end. Its resident memory grows by at most 64 MiB, and an honest operator is served meanwhile.
func TestUnfinishedRequestsDoNotExhaustMemory(t *testing.T) {
	// Measure the delivered program: the race detector, which this test may run with, multiplies memory.
	program := filepath.Join(t.TempDir(), "supervisor")
	if out, err := exec.Command("go", "build", "-trimpath", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, tc := range []struct {
		role   pki.Role
		file   string
		method string
	}{
		{pki.RoleNode, "n0-0-0-host", lofamov1.FaultSupervisor_ListNodes_FullMethodName},
		{pki.RoleExecutor, "executor", lofamov1.FaultSupervisor_ListNodes_FullMethodName},
		{pki.RoleViewer, "viewer", lofamov1.ResponseService_CheckPolicies_FullMethodName},
		{pki.RoleViewer, "viewer", lofamov1.FaultSupervisor_Watch_FullMethodName},
		{pki.RoleOperator, "operator", lofamov1.FaultSupervisor_ApplyTopology_FullMethodName},
	} {
		t.Run(string(tc.role)+tc.method[strings.LastIndexByte(tc.method, '/'):], func(t *testing.T) {
			c := supervisortest.New(t, supervisortest.Options{Replicas: 1})
			p := processOf(t, program, c, c.Configs[0])
			c.AwaitLeader(t)
			honest := lofamov1.NewFaultSupervisorClient(c.Person(t, pki.RoleOperator, "honest", c.Configs[0].GRPC))
			if _, err := honest.ListNodes(t.Context(), &lofamov1.ListNodesRequest{}); err != nil {
				t.Fatal(err)
			}
			before := resident(t, p.Process.Pid)
			conf, err := pki.ClientTLS(filepath.Join(c.Dir, tc.file+".pem"), filepath.Join(c.Dir, tc.file+".key"),
				filepath.Join(c.Dir, "ca.pem"), nil)
			if err != nil {
				t.Fatal(err)
			}
			conf.NextProtos, conf.ServerName = []string{"h2"}, host(c.Configs[0].GRPC)
			a := &attack{addr: c.Configs[0].GRPC, conf: conf, method: tc.method, end: time.Now().Add(attackTime)}
			var attackers sync.WaitGroup
			for range attackConns {
				attackers.Go(a.run)
			}
			peak, worst := before, time.Duration(0)
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for time.Now().Before(a.end) {
				<-tick.C
				peak = max(peak, resident(t, p.Process.Pid))
				asked := time.Now()
				if _, err := honest.ListNodes(t.Context(), &lofamov1.ListNodesRequest{}); err != nil {
					t.Errorf("an honest operator during the attack: %v", err)
					break
				}
				worst = max(worst, time.Since(asked))
			}
			attackers.Wait()
			sent, streams := a.totals()
			t.Logf("%s: %d streams opened, %d MiB sent: %d MiB before, %d MiB at the peak, worst honest answer %v", tc.method, streams,
				sent>>20, before>>20, peak>>20, worst.Round(time.Millisecond))
			if peak-before > maxGrowth {
				t.Errorf("the supervisor grew by %d MiB: want at most %d", (peak-before)>>20, maxGrowth>>20)
			}
		})
	}
}

// The attack on embedded etcd's listeners, and its highest allowed cost.
const (
	storeConns  = 2000                // of each attacker at each listener
	maxOpen     = 400                 // more sockets of the supervisor
	storeAnswer = supervisortest.Wait // for one answer, with as many tries as fit
	askTime     = 5 * time.Second     // for one try
)

// TestConnectionsDoNotExhaustStore: one attacker without a certificate and one with a node's certificate each open
// 2,000 connections to both listeners of embedded etcd, and keep them open. The store still serves new clients and
// peers, and the supervisor grows by at most 64 MiB and by a bounded number of sockets.
func TestConnectionsDoNotExhaustStore(t *testing.T) {
	program := filepath.Join(t.TempDir(), "supervisor")
	if out, err := exec.Command("go", "build", "-trimpath", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := supervisortest.New(t, supervisortest.Options{Replicas: 1})
	cfg := c.Configs[0]
	p := processOf(t, program, c, cfg)
	c.AwaitLeader(t)
	client, peer := strings.TrimPrefix(cfg.Etcd.ClientURL, "https://"), strings.TrimPrefix(cfg.Etcd.PeerURL, "https://")
	memory, sockets := resident(t, p.Process.Pid), descriptors(t, p.Process.Pid)
	conf := func(cert, key string) *tls.Config {
		out, err := pki.ClientTLS(cert, key, filepath.Join(c.Dir, "ca.pem"), nil)
		if err != nil {
			t.Fatal(err)
		}
		out.ServerName = host(client)
		return out
	}
	node := conf(filepath.Join(c.Dir, "n0-0-0-host.pem"), filepath.Join(c.Dir, "n0-0-0-host.key"))
	var held sync.Map
	defer held.Range(func(conn, _ any) bool { _ = conn.(net.Conn).Close(); return true })
	var attackers sync.WaitGroup
	for _, addr := range []string{client, peer} {
		attackers.Go(func() { // the start of a handshake
			for range storeConns {
				if conn, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
					_, _ = conn.Write([]byte{22, 3, 1, 2, 0})
					held.Store(conn, true)
				}
			}
		})
		attackers.Go(func() {
			for range storeConns {
				if conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Second}, "tcp", addr, node); err == nil {
					held.Store(conn, true)
				}
			}
		})
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		attackers.Wait()
	}()
	most, open, served, worst := memory, sockets, 0, time.Duration(0)
	supervisor := conf(cfg.TLS.Cert, cfg.TLS.Key)
	for attacked := true; attacked; served++ {
		select {
		case <-over:
			attacked = false
		default:
		}
		begin := time.Now()
		until := begin.Add(storeAnswer)
		for _, ask := range []func() error{func() error { return readsStore(t, client, supervisor) },
			func() error { return readsMembers(peer, supervisor) }} {
			err := ask()
			for err != nil && time.Now().Before(until) {
				err = ask()
			}
			if err != nil {
				t.Fatalf("a supervisor among the attackers, after %d: %v", served, err)
			}
		}
		worst = max(worst, time.Since(begin))
		most, open = max(most, resident(t, p.Process.Pid)), max(open, descriptors(t, p.Process.Pid))
	}
	t.Logf("%d MiB before, %d MiB at the peak; %d descriptors before, %d at the peak; %d reads by new clients and peers, the slowest took %s",
		memory>>20, most>>20, sockets, open, served, worst.Round(time.Millisecond))
	if most-memory > maxGrowth {
		t.Errorf("the supervisor grew by %d MiB: want at most %d", (most-memory)>>20, maxGrowth>>20)
	}
	if open-sockets > maxOpen {
		t.Errorf("the supervisor has %d more descriptors open: want at most %d", open-sockets, maxOpen)
	}
}

// readsStore reads through a new client.
func readsStore(t *testing.T, addr string, conf *tls.Config) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + addr}, TLS: conf, DialTimeout: askTime, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), askTime)
	defer cancel()
	_, err = c.Get(ctx, "x")
	return err
}

// readsMembers asks as a peer does, over a new connection.
func readsMembers(addr string, conf *tls.Config) error {
	c := &http.Client{Timeout: askTime, Transport: &http.Transport{TLSClientConfig: conf.Clone(), DisableKeepAlives: true}}
	resp, err := c.Get("https://" + addr + "/members")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// descriptors counts the open descriptors of a process.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func host(addr string) string {
	h, _, _ := net.SplitHostPort(addr)
	return h
}

// resident returns a process's resident memory, VmRSS, in bytes.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatalf("process %d has no VmRSS", pid)
	return 0
}

// attack opens streams and fills them as far as the server's windows allow.
type attack struct {
	addr   string
	conf   *tls.Config
	method string
	end    time.Time

	mu            sync.Mutex
	sent, streams int64
}

func (a *attack) totals() (sent, streams int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sent, a.streams
}

func (a *attack) count(sent, streams int64) (more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent, a.streams = a.sent+sent, a.streams+streams
	return a.sent < attackVolume
}

// run attacks by one connection after another until the end.
func (a *attack) run() {
	for time.Now().Before(a.end) {
		conn, err := tls.DialWithDialer(&net.Dialer{Deadline: a.end}, "tcp", a.addr, a.conf)
		if err == nil {
			_ = conn.SetDeadline(a.end)
			a.fill(conn)
			_ = conn.Close()
		}
	}
}

// fill opens the streams of one connection and fills them until the server or the attack ends it.
func (a *attack) fill(conn net.Conn) {
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		return
	}
	f := http2.NewFramer(conn, conn)
	f.SetMaxReadFrameSize(1 << 20)
	w := &windows{f: f, conn: 65535, stream: 65535, of: map[uint32]int64{}, sent: map[uint32]int64{}}
	w.more = sync.NewCond(&w.mu)
	if f.WriteSettings() != nil {
		return
	}
	var reading sync.WaitGroup
	reading.Go(w.read)
	defer reading.Wait()
	defer func() { _ = conn.Close() }() // ends the reader
	for i := range uint32(unfinishedStreams / attackConns) {
		id := 2*i + 1
		if w.open(id, a.method) != nil || !a.count(0, 1) {
			return
		}
	}
	chunk := make([]byte, 16<<10)
	for {
		id, n, ok := w.room(int64(len(chunk)))
		if !ok {
			return
		}
		if w.write(func() error { return f.WriteData(id, false, chunk[:n]) }) != nil || !a.count(n, 0) {
			return
		}
	}
}

// windows are the bytes that a server accepts on a connection.
type windows struct {
	f *http2.Framer

	writing sync.Mutex
	mu      sync.Mutex
	more    *sync.Cond
	ended   bool
	conn    int64
	stream  int64            // of a new stream
	of      map[uint32]int64 // streams that the server has not ended
	sent    map[uint32]int64 // of their messages, each of which never gets its last byte
}

func (w *windows) write(do func() error) error {
	w.writing.Lock()
	defer w.writing.Unlock()
	return do()
}

// open begins a call and announces its message.
func (w *windows) open(id uint32, method string) error {
	var b strings.Builder
	enc := hpack.NewEncoder(&b)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", method}, {":authority", "supervisor"},
		{"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	prefix := binary.BigEndian.AppendUint32([]byte{0}, unfinishedBytes)
	w.mu.Lock()
	w.of[id] = w.stream - int64(len(prefix))
	w.conn -= int64(len(prefix))
	w.mu.Unlock()
	return w.write(func() error {
		if err := w.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte(b.String()), EndHeaders: true}); err != nil {
			return err
		}
		return w.f.WriteData(id, false, prefix)
	})
}

// room waits for a stream on which sending is possible, and takes at most most bytes of its window.
func (w *windows) room(most int64) (id uint32, n int64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if w.ended {
			return 0, 0, false
		}
		for id, left := range w.of {
			if n := min(left, w.conn, most, unfinishedBytes-1-w.sent[id]); n > 0 {
				w.of[id], w.conn = left-n, w.conn-n
				w.sent[id] += n
				return id, n, true
			}
		}
		w.more.Wait()
	}
}

// read follows the server's window updates and resets.
func (w *windows) read() {
	defer func() {
		w.mu.Lock()
		w.ended = true
		w.mu.Unlock()
		w.more.Broadcast()
	}()
	for {
		f, err := w.f.ReadFrame()
		if err != nil {
			return
		}
		w.mu.Lock()
		switch f := f.(type) {
		case *http2.WindowUpdateFrame:
			if f.StreamID == 0 {
				w.conn += int64(f.Increment)
			} else if left, ok := w.of[f.StreamID]; ok {
				w.of[f.StreamID] = left + int64(f.Increment)
			}
		case *http2.SettingsFrame:
			if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
				for id := range w.of {
					w.of[id] += int64(v) - w.stream
				}
				w.stream = int64(v)
			}
		case *http2.RSTStreamFrame:
			delete(w.of, f.StreamID)
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				delete(w.of, f.StreamID)
			}
		}
		w.mu.Unlock()
		w.more.Broadcast()
		switch f := f.(type) {
		case *http2.PingFrame:
			if !f.IsAck() {
				data := f.Data
				_ = w.write(func() error { return w.f.WritePing(true, data) })
			}
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = w.write(w.f.WriteSettingsAck)
			}
		}
	}
}
