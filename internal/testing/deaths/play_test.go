package deaths

import (
	"bufio"
	"context"
	"io"
	"os"
	"strings"
	"testing"
)

// TestLinesOfKeysFileReachMachine: each line that a person writes to a machine's file .keys goes to its start script, until the ring ends.
func TestLinesOfKeysFileReachMachine(t *testing.T) {
	script, keys := io.Pipe()
	m := &guest{name: "n0", dir: t.TempDir(), keys: keys, ended: make(chan struct{})}
	file, err := m.keyboard()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.attend(ctx, file) }()
	typed := bufio.NewReader(script)
	for _, line := range []string{"ps\n", "echo c >/proc/sysrq-trigger\n"} {
		if err := os.WriteFile(m.path(".keys"), []byte(line), 0); err != nil {
			t.Fatal(err)
		}
		if got, err := typed.ReadString('\n'); err != nil || got != line {
			t.Errorf("the machine got %q, %v: want %q", got, err, line)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := m.keyboard(); err == nil {
		t.Error("a second keyboard of a machine: want an error")
	}
}

func TestInstructionsNameTheCardOnlyIfThereIsOne(t *testing.T) {
	r := &ring{nodes: []*guest{{name: "n0"}}}
	text := r.instructions(Options{Dir: "/d", Bin: "/b"})
	if strings.Contains(text, "c0.keys") || !strings.Contains(text, "/b/lofamoctl get nodes") {
		t.Errorf("of nodes with one kernel:\n%s", text)
	}
	r.cards = []*guest{{name: "c0"}}
	if text := r.instructions(Options{Dir: "/d", Bin: "/b"}); !strings.Contains(text, "/d/c0.keys") {
		t.Errorf("of nodes with two kernels:\n%s", text)
	}
}
