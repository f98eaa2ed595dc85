package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/pki"
)

// bundle is a bundle as it came.
type bundle struct {
	last  *lofamov1.BundleProgress
	files map[string]string
}

// fetch fetches a bundle as an operator. at is called with the number of bytes before each piece.
func (t trial) fetch(node, half string, at func(received int, size uint64)) bundle {
	t.Helper()
	c, err := t.Cluster.ClientAs(pki.RoleOperator)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	var got bytes.Buffer
	var b bundle
	err = c.GetBundle(t.Context(), &lofamov1.GetBundleRequest{Node: node, Half: half}, func(r *lofamov1.GetBundleResponse) error {
		if p := r.GetProgress(); p != nil {
			if p.GetReceived() == 0 {
				got.Reset()
			}
			b.last = p
		}
		if at != nil {
			at(got.Len(), b.last.GetSize())
		}
		got.Write(r.GetData())
		return nil
	})
	if err != nil {
		t.Fatalf("bundle of %s/%s: %v, the last progress %v", node, half, err, b.last)
	}
	if !b.last.GetComplete() || b.last.GetSize() != uint64(got.Len()) {
		t.Errorf("%d bytes of %v", got.Len(), b.last)
	}
	b.files = t.untar(&got)
	if m := b.files["MANIFEST.txt"]; !strings.Contains(m, "Diagnostic bundle of the "+half+" half of node ") {
		t.Errorf("the MANIFEST: %q", m)
	}
	return b
}

func (t trial) untar(r io.Reader) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(b)
	}
}

// longLog extends a node's log by size bytes that hardly compress, and returns them.
func (t trial) longLog(node string, size int) string {
	t.Helper()
	b := make([]byte, size*3/4)
	_, _ = rand.Read(b)
	text := base64.StdEncoding.EncodeToString(b) + "\n"
	f, err := os.OpenFile(filepath.Join(t.Cluster.Dir(), "nodes", node, "host.log"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return text
}

// TestBundlesOfHealthyAndCutNodes fetches diagnostic bundles from nodes whose service network works, does not, or ceases to in
// the middle.
func TestBundlesOfHealthyAndCutNodes(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x2x2", cluster.Options{Supervisors: 3, Periods: patient()})
	begun := l.Mark()

	try(t, l, "direct", func(t trial) {
		t.longLog("n1-0-1", 1_500_000) // the DNP half's data passes through a small mailbox
		for _, half := range []string{"host", "dnp"} {
			b := t.fetch("1,0,1", half, nil)
			if b.last.GetVia() != "direct" {
				t.Errorf("the %s half's came via %s", half, b.last.GetVia())
			}
			for _, name := range []string{
				"registers.txt", "registers.json", "register-history.txt", "config.yaml", "delivery.json", "version.json", "interfaces.txt",
				"proc/uptime", "proc/meminfo", "log/host.log", "log/dnp.log",
			} {
				if b.files[name] == "" {
					t.Errorf("the %s half's has no %s:\n%s", half, name, b.files["MANIFEST.txt"])
				}
			}
			for name, content := range b.files {
				if strings.Contains(content, "PRIVATE KEY-----") {
					t.Errorf("%s holds a key", name)
				}
			}
		}
		t.othersWereSpared()
	})

	try(t, l, "a viewer may not", func(t trial) {
		err := t.Client.GetBundle(t.Context(), &lofamov1.GetBundleRequest{Node: "0,0,0"}, func(*lofamov1.GetBundleResponse) error { return nil })
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v", err)
		}
	})

	try(t, l, "service network cut: by the torus, and reports still get through", func(t trial) {
		text := t.longLog("n1-0-1", 1_000_000)
		t.inject("1,0,1", simple(cluster.CutService))
		t.becomes("n1-0-1", "service-network", failed)
		reported := false
		b := t.fetch("1,0,1", "host", func(received int, size uint64) {
			if reported || received < 100_000 {
				return
			}
			reported = true
			t.inject("1,0,1", sensor("temperature", 110))
			s := t.becomes("n1-0-1", "temperature", failed)
			if s.GetPath() != torus {
				t.Errorf("the report came by %s", s.GetPath())
			}
			t.Logf("report during the transfer: aware after %s", s.GetAwarenessLatency().AsDuration())
		})
		if !reported || !strings.HasPrefix(b.last.GetVia(), "n") || !strings.Contains(b.files["log/host.log"], text) {
			t.Errorf("via %s, %d bytes of the log", b.last.GetVia(), len(b.files["log/host.log"]))
		}
		t.neverFailed()
	})

	try(t, l, "service network cut in the middle", func(t trial) {
		text := t.longLog("n0-1-1", 4_000_000)
		cut := false
		b := t.fetch("0,1,1", "host", func(received int, size uint64) {
			if !cut && received > 200_000 {
				cut = true
				t.inject("0,1,1", simple(cluster.CutService))
				t.mayFail("n0-1-1", "service-network")
				if uint64(received) > size/2 {
					t.Errorf("cut only after %d of %d bytes", received, size)
				}
			}
		})
		if !cut || !strings.HasPrefix(b.last.GetVia(), "n") || !strings.Contains(b.files["log/host.log"], text) {
			t.Errorf("cut %t, via %s, %d bytes of the log", cut, b.last.GetVia(), len(b.files["log/host.log"]))
		}
		t.neverFailed()
	})

	try(t, l, "the neighbours' service networks cut as well", func(t trial) {
		for _, n := range []string{"0,0,0", "1,0,0", "0,1,0", "0,0,1"} {
			t.inject(n, simple(cluster.CutService))
		}
		b := t.fetch("0,0,0", "host", nil)
		if via := b.last.GetVia(); via != "n1-1-0" && via != "n1-0-1" && via != "n0-1-1" && via != "n1-1-1" {
			t.Errorf("via %s", via)
		}
	})

	try(t, l, "host half dead: the DNP half answers through the torus", func(t trial) {
		t.inject("1,1,0", simple(cluster.KillHost))
		t.becomes("n1-1-0", "host", failed)
		b := t.fetch("1,1,0", "dnp", nil)
		if !strings.HasPrefix(b.last.GetVia(), "n") || !strings.Contains(b.files["links.txt"], "link X+") {
			t.Errorf("via %s: %s", b.last.GetVia(), b.files["links.txt"])
		}
	})

	for _, s := range l.Since(begun) {
		if s.GetComponent() == "dnp-core" && s.GetTo() == sick {
			t.Errorf("bulk made a router sick: %s", s)
		}
	}
}
