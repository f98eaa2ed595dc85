//go:build lofamo_ordertest

// Package ordertest is a kind of order for tests of the order channel: a marker, which is a file with the name of the
// node and the content. Only programs built with the tag lofamo_ordertest contain it. It also shows the effort of a new
// kind: this file, and one line at the assembly of each program.
//
// The leader reads the wanted markers from files too, so that a test can change them.
package ordertest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
)

// Kind is the name of the kind.
const Kind = "marker"

// EnvDir is the environment variable with the directory of the test. Each subdirectory has one file for each node: want
// has the wanted marker, marked the marker in force, and said the last answer that the leader received.
const EnvDir = "LOFAMO_ORDERTEST_DIR"

// Node is the kind's handler at a node. The zero value is ready.
type Node struct{}

// Validate refuses contents that are not a single word.
func (Node) Validate(c order.Content) error {
	if strings.ContainsAny(string(c), " /.") {
		return fmt.Errorf("marker: given %q: want a word without blanks, dots and slashes", c)
	}
	return nil
}

// Apply writes the marker.
func (Node) Apply(c order.Content) error {
	node, word, _ := strings.Cut(string(c), ":")
	return os.WriteFile(filepath.Join(os.Getenv(EnvDir), "marked", node), []byte(word), 0o600)
}

// Leader is the kind's handler at a supervisor. The zero value is ready.
type Leader struct{}

// Kind implements order.Plain.
func (Leader) Kind() string { return Kind }

// Wanted implements order.Plain.
func (Leader) Wanted() (map[fault.NodeID]order.Content, uint64, <-chan struct{}) {
	dir := filepath.Join(os.Getenv(EnvDir), "want")
	files, _ := os.ReadDir(dir) // no files: no orders
	out := make(map[fault.NodeID]order.Content)
	for _, f := range files {
		if b, err := os.ReadFile(filepath.Join(dir, f.Name())); err == nil && len(b) > 0 {
			out[fault.NodeID(f.Name())] = order.Content(f.Name() + ":" + string(b))
		}
	}
	return out, 1, nil
}

// Heard implements order.Plain.
func (Leader) Heard(st *lofamov1.OrderStatus) {
	text := fmt.Sprintf("%x %s", st.GetSum(), st.GetError())
	_ = os.WriteFile(filepath.Join(os.Getenv(EnvDir), "said", st.GetNode()), []byte(text), 0o600) // else the test fails
}
