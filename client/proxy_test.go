package client_test

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// TestClientFollowsNoProxyOfEnvironment: with HTTPS_PROXY, the client still connects to the supervisors themselves. net/http reads the
// variable once in a process, and never for loopback addresses: so a second process of the test connects to 0.0.0.0.
func TestClientFollowsNoProxyOfEnvironment(t *testing.T) {
	const variable = "HTTPS_PROXY"
	if os.Getenv(variable) == "" {
		proxy, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = proxy.Close() }()
		go func() { // ends with the listener
			for c, err := proxy.Accept(); err == nil; c, err = proxy.Accept() {
				_ = c.Close()
			}
		}()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"=http://"+proxy.Addr().String())
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	_, err := dial(t, dir, "0.0.0.0:1").ListNodes(bounded(t), &lofamov1.ListNodesRequest{})
	if err == nil || !strings.Contains(err.Error(), "dial tcp 0.0.0.0:1: connect: connection refused") {
		t.Errorf("%v: want a refused connection to the supervisor's address", err)
	}
}
