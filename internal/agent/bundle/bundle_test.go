package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"
)

var (
	self  = fault.Origin{Node: "n1-0-1", Half: fault.HalfHost}
	start = time.Date(2024, 5, 6, 12, 0, 0, 0, time.UTC)
)

// testConfig gathers from a proc tree and a kernel log in a directory, with a stopped clock.
func testConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	for _, name := range procFiles {
		path := filepath.Join(dir, "proc", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("content of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kernel := filepath.Join(dir, "kmsg")
	if err := os.WriteFile(kernel, []byte("6,1,0,-;booted\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig(self)
	cfg.Version, cfg.Proc, cfg.Kernel, cfg.Rest = map[string]string{"version": "v1"}, filepath.Join(dir, "proc"), kernel, 0
	cfg.Now = func() time.Time { return start }
	return cfg
}

// unpack gathers a bundle and takes it apart.
func unpack(t *testing.T, cfg Config, maxSize uint64) (files map[string][]byte, order []string) {
	t.Helper()
	var b bytes.Buffer
	if err := Gather(t.Context(), cfg, maxSize, &b); err != nil {
		t.Fatal(err)
	}
	if uint64(b.Len()) > maxSize {
		t.Errorf("%d bytes, want at most %d", b.Len(), maxSize)
	}
	z, err := gzip.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, order
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Mode != 0o600 || h.Typeflag != tar.TypeReg {
			t.Errorf("%s has mode %o and type %c", h.Name, h.Mode, h.Typeflag)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		order = append(order, h.Name)
	}
}

// noise returns incompressible bytes.
func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func writeFile(t *testing.T, path string, b []byte) string {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBundleContainsAllParts(t *testing.T) {
	cfg := testConfig(t)
	cfg.Parts = []Part{{"config.yaml", func() ([]byte, error) { return []byte("node: n1-0-1\n"), nil }}}
	cfg.Logs = []string{writeFile(t, filepath.Join(t.TempDir(), "host.log"), []byte("a line\n"))}
	files, order := unpack(t, cfg, 1<<20)
	for name, want := range map[string]string{
		"config.yaml": "node: n1-0-1\n", "version.json": "{\n  \"version\": \"v1\"\n}", "proc/pressure/cpu": "content of pressure/cpu",
		"proc/interrupts": "content of interrupts", "kernel.log": "6,1,0,-;booted\n", "log/host.log": "a line\n",
	} {
		if got := string(files[name]); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if !bytes.Contains(files["interfaces.txt"], []byte("127.0.0.1/8")) {
		t.Errorf("interfaces.txt: %s", files["interfaces.txt"])
	}
	if order[len(order)-1] != "MANIFEST.txt" {
		t.Errorf("the MANIFEST is not the last of %v", order)
	}
	for _, name := range order[:len(order)-1] {
		if !bytes.Contains(files["MANIFEST.txt"], []byte("\n  "+name+" ")) {
			t.Errorf("the MANIFEST does not name %s:\n%s", name, files["MANIFEST.txt"])
		}
	}
}

// TestAnyLogNameFits: the archive's format has short names in ASCII. No name of a log makes the bundle fail.
func TestAnyLogNameFits(t *testing.T) {
	cfg := testConfig(t)
	dir := t.TempDir()
	for _, name := range []string{"überwachung.log", strings.Repeat("x", 200) + ".log", "a\nb.log"} {
		cfg.Logs = append(cfg.Logs, writeFile(t, filepath.Join(dir, name), []byte(name)))
	}
	files, _ := unpack(t, cfg, 1<<20)
	for in, want := range map[string]string{
		"log/?berwachung.log": "überwachung.log", "log/" + strings.Repeat("x", 86) + ".log": strings.Repeat("x", 200) + ".log",
		"log/a?b.log": "a\nb.log",
	} {
		if got := string(files[in]); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

// TestManifestNamesUnreadableSources makes sources unreadable in several ways: the manifest names each with its reason, the other parts are
// there, and nothing blocks.
func TestManifestNamesUnreadableSources(t *testing.T) {
	cfg := testConfig(t)
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo.log")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(cfg.Proc, "meminfo")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(cfg.Proc, "meminfo"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(cfg.Proc, "uptime")); err != nil {
		t.Fatal(err)
	}
	cfg.Kernel = filepath.Join(dir, "no-kmsg")
	cfg.Parts = append(Registers(filepath.Join(dir, "no-registers"), nil),
		Part{"delivery.json", func() ([]byte, error) { return nil, errors.New("it\nis   broken") }})
	cfg.Logs = []string{fifo, dir, filepath.Join(dir, "gone.log")}
	files, _ := unpack(t, cfg, 1<<20)
	manifest := string(files["MANIFEST.txt"])
	_, out, _ := strings.Cut(manifest, "Left out")
	for name, why := range map[string]string{
		"log/fifo.log": "want a regular file", "log/gone.log": "no such file", "log/" + filepath.Base(dir): "want a regular file",
		"proc/meminfo": "want a regular file", "kernel.log": "no such file", "registers.txt": "no such file", "registers.json": "no such file",
		"delivery.json": "it is broken", "private keys, gossip key": "never",
	} {
		line := ""
		for l := range strings.Lines(out) {
			if strings.HasPrefix(l, "  "+name+" ") {
				line = l
			}
		}
		if !strings.Contains(line, why) {
			t.Errorf("%s: given %q, want %q in:\n%s", name, line, why, manifest)
		}
		if _, there := files[name]; there {
			t.Errorf("%s is there", name)
		}
	}
	if len(files["proc/uptime"]) == 0 || !strings.Contains(manifest, "is that of /proc") {
		t.Errorf("uptime is not taken from this machine's /proc:\n%s", manifest)
	}
	cfg.Kernel, cfg.Logs = "", nil
	files, _ = unpack(t, cfg, 1<<20)
	if m := string(files["MANIFEST.txt"]); !strings.Contains(m, "not asked for") || !strings.Contains(m, "do not log to a file") {
		t.Errorf("the MANIFEST says nothing of the logs:\n%s", m)
	}
}

// TestBundleNeverExceedsItsBound bounds bundles of incompressible data: they never exceed the bound, and large parts lose their beginning.
func TestBundleNeverExceedsItsBound(t *testing.T) {
	big := noise(3 << 20)
	for _, maxSize := range []uint64{MinSize, 100_000, 1 << 20, 2_000_003} {
		t.Run(fmt.Sprint(maxSize), func(t *testing.T) {
			cfg := testConfig(t)
			dir := t.TempDir()
			cfg.Parts = []Part{{"metrics.txt", func() ([]byte, error) { return big[:20_000], nil }}}
			cfg.Logs = []string{writeFile(t, filepath.Join(dir, "host.log"), big), writeFile(t, filepath.Join(dir, "dnp.log"), big[:500])}
			files, _ := unpack(t, cfg, maxSize)
			log := files["log/host.log"]
			if !bytes.HasSuffix(big, log) || len(log) == 0 && maxSize > 100_000 {
				t.Errorf("%d bytes of the log, not its end", len(log))
			}
			if want := fmt.Sprintf("the end of %d: the first %d were cut", len(big), len(big)-len(log)); len(log) > 0 &&
				!bytes.Contains(files["MANIFEST.txt"], []byte(want)) {
				t.Errorf("not %q in:\n%s", want, files["MANIFEST.txt"])
			}
			if maxSize >= 1<<20 && (uint64(len(log)) < maxSize/3 || len(files["log/dnp.log"]) != 500) {
				t.Errorf("%d and %d bytes of the logs", len(log), len(files["log/dnp.log"]))
			}
		})
	}
	if err := Gather(t.Context(), testConfig(t), MinSize-1, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "max_size: given 65535") {
		t.Errorf("too small: %v", err)
	}
	cfg := testConfig(t)
	cfg.Parts = []Part{{"large", func() ([]byte, error) { return noise(smallPart + 1), nil }}}
	if files, _ := unpack(t, cfg, 4<<20); len(files["large"]) != smallPart {
		t.Errorf("%d bytes of a part, want %d", len(files["large"]), smallPart)
	}
}

// TestTimeIsOver lets the time pass during gathering: missing parts are left out, and the bundle is complete.
func TestTimeIsOver(t *testing.T) {
	cfg := testConfig(t)
	now := start
	cfg.Now = func() time.Time { return now }
	cfg.Parts = []Part{
		{"first", func() ([]byte, error) { now = now.Add(cfg.Within); return []byte("1"), nil }},
		{"second", func() ([]byte, error) { return []byte("2"), nil }},
	}
	cfg.Logs = []string{writeFile(t, filepath.Join(t.TempDir(), "host.log"), []byte("x"))}
	files, order := unpack(t, cfg, 1<<20)
	if len(order) != 2 || string(files["first"]) != "1" || bytes.Count(files["MANIFEST.txt"], []byte("gathering had taken 10s already")) < 10 {
		t.Errorf("%v\n%s", order, files["MANIFEST.txt"])
	}

	// In the middle of a log, which is padded.
	calls := 0
	cfg = testConfig(t)
	cfg.Parts = nil
	cfg.Logs = []string{writeFile(t, filepath.Join(t.TempDir(), "host.log"), noise(200_000))}
	cfg.Now = func() time.Time {
		if calls++; calls > 15 { // the parts are complete by then
			return start.Add(cfg.Within)
		}
		return start
	}
	files, _ = unpack(t, cfg, 1<<20)
	if log := files["log/host.log"]; len(log) != 200_000 || log[199_999] != 0 ||
		!bytes.Contains(files["MANIFEST.txt"], []byte("zeros follow")) {
		t.Errorf("%d bytes of the log\n%s", len(log), files["MANIFEST.txt"])
	}
}

func TestCancelledOrFailedBundleReturnsError(t *testing.T) {
	cfg := testConfig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cfg.Parts = []Part{{"first", func() ([]byte, error) { cancel(); return noise(100_000), nil }}}
	if err := Gather(ctx, cfg, 1<<20, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	cfg.Parts = nil
	if err := Gather(t.Context(), cfg, 1<<20, broken{}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestRegisterDumpNamesEveryRegister(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registers")
	f, err := regfile.Open(path, fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	xp := grid.Directions()[0]
	det := torus.Detail{Rx: torus.LinkSick, Tx: torus.LinkNormal}
	for _, err := range []error{
		f.SetEpoch(fault.HalfDNP, 7), f.Store(watchdog.AddrMaxHops, 9), f.SetLinkDetail(xp, det.Encode()),
		f.SetSensor(fault.ComponentTemperature, 45_500),
		f.StoreDNP(watchdog.DNPWord{Valid: true, Core: watchdog.HealthSick}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	parts := Registers(path, []grid.Direction{xp})
	text, err := parts[0].Make()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"dnp  half: boot epoch 7", "link X+: " + det.String(), "temperature: 45.500", "0x00000009  Max",
		"DNP local/global watchdog"} {
		if !strings.Contains(strings.ToLower(string(text)), strings.ToLower(want)) {
			t.Errorf("not %q in:\n%s", want, text)
		}
	}
	b, err := parts[1].Make()
	if err != nil {
		t.Fatal(err)
	}
	var list []watchdog.Word
	if err := json.Unmarshal(b, &list); err != nil || len(list) != len(watchdog.Registers()) {
		t.Errorf("%d registers, %v", len(list), err)
	}
}

func TestHistoryOmitsChangesOfValidAlone(t *testing.T) {
	h := NewHistory(start)
	h.Note(start.Add(time.Second), watchdog.AddrDNPWatchdog, 0x40)
	h.Note(start.Add(2*time.Second), watchdog.AddrDNPWatchdog, 0x41) // only Valid
	h.Note(start.Add(3*time.Second), watchdog.AddrMaxHops, 9)
	h.Note(start.Add(4*time.Second), watchdog.AddrDNPWatchdog, 0x01)
	b, err := h.Text()
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if strings.Count(text, "→") != 3 || !strings.Contains(text, "1.000000s  0x00000ec0  0x00000000 → 0x00000041") ||
		!strings.Contains(text, "4.000000s  0x00000ec0  0x00000041 → 0x00000001  DNP") || !strings.Contains(text, "the last 3 of 3") {
		t.Errorf("%s", text)
	}
	for i := range uint32(2 * historySize) {
		h.Note(start.Add(time.Minute), watchdog.AddrTemperature, i)
	}
	b, _ = h.Text()
	if text = string(b); strings.Count(text, "→") != historySize ||
		!strings.Contains(text, fmt.Sprintf("the last %d of %d", historySize, 2*historySize+3)) ||
		!strings.HasSuffix(text, fmt.Sprintf("0x%08x → 0x%08x  Temperature\n", 2*historySize-2, 2*historySize-1)) {
		t.Errorf("…%s", text[max(0, len(text)-200):])
	}
}

func TestKernelLogKeepsEnd(t *testing.T) {
	var b bytes.Buffer
	for i := range 5000 {
		fmt.Fprintf(&b, "6,%d,0,-;line\n", i)
	}
	got, err := kernelLog(writeFile(t, filepath.Join(t.TempDir(), "kmsg"), b.Bytes()), 1000, func() error { return nil })
	if err != nil || len(got) > 1000 || len(got) < 900 || !bytes.HasPrefix(got, []byte("6,")) ||
		!bytes.HasSuffix(got, []byte("6,4999,0,-;line\n")) {
		t.Errorf("%d bytes %.40q…, %v", len(got), got, err)
	}
	if got := lastLines([]byte("no end of line"), 4); string(got) != "line" {
		t.Errorf("%q", got)
	}
}

func TestLogsBesideStandardErrorAreFound(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "self/fd"), 0o700); err != nil {
		t.Fatal(err)
	}
	fd := filepath.Join(dir, "self/fd/2")
	for _, tc := range []struct{ name, want string }{
		{"host.log", "host.log dnp.log"}, {"dnp.log", "host.log dnp.log"}, {"agent.out", "agent.out"}, {"gone (deleted)", ""}, {"", ""},
	} {
		_ = os.Remove(fd)
		target := dir // not a file
		if tc.name != "" {
			target = writeFile(t, filepath.Join(dir, tc.name), nil)
		}
		if err := os.Symlink(target, fd); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range OwnLogs(dir) {
			got = append(got, filepath.Base(p))
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%q: %v, want %s", tc.name, got, tc.want)
		}
	}
	if got := OwnLogs(t.TempDir()); got != nil {
		t.Errorf("without proc: %v", got)
	}
	if got := FileName(self, start); got != "n1-0-1-host-20240506T120000Z.tar.gz" {
		t.Error(got)
	}
}

// TestKernelLogHasItsOwnBound: it is larger than that of other parts, and the log begins with a whole line.
func TestKernelLogHasItsOwnBound(t *testing.T) {
	cfg := testConfig(t)
	line := "6,1,0,-;" + strings.Repeat("x", 90) + "\n"
	cfg.Kernel = writeFile(t, filepath.Join(t.TempDir(), "kmsg"), []byte(strings.Repeat(line, 2*kernelPart/len(line))))
	files, _ := unpack(t, cfg, 4<<20)
	if log := string(files["kernel.log"]); len(log) > kernelPart || len(log) < kernelPart-len(line) || !strings.HasPrefix(log, line) {
		t.Errorf("%d bytes that begin with %.20q: want the last whole lines of %d bytes", len(log), log, kernelPart)
	}
}

// TestEmptyPartIsInBundle: a part without content, such as metrics of no link, is no part without room.
func TestEmptyPartIsInBundle(t *testing.T) {
	cfg := testConfig(t)
	cfg.Parts = []Part{{"links.txt", func() ([]byte, error) { return nil, nil }}}
	files, _ := unpack(t, cfg, 1<<20)
	if b, ok := files["links.txt"]; !ok || len(b) != 0 {
		t.Errorf("links.txt: %q, %t: want an empty file\n%s", b, ok, files["MANIFEST.txt"])
	}
}

// TestKernelLogIsReadInPieces: a half of real-time class must rest while it reads a log of many records.
func TestKernelLogIsReadInPieces(t *testing.T) {
	cfg := testConfig(t)
	const pieces = 256 // of which the archive has 64 at most
	cfg.Kernel, cfg.Rest = writeFile(t, filepath.Join(t.TempDir(), "kmsg"), make([]byte, pieces*piece)), 2*time.Millisecond
	began := time.Now()
	unpack(t, cfg, 4<<20)
	if took := time.Since(began); took < pieces*cfg.Rest {
		t.Errorf("%d pieces were read and written in %s: want rests of %s between them", pieces, took, cfg.Rest)
	}
}
