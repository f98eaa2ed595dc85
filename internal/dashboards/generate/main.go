// Command generate writes deploy/grafana from internal/dashboards. make generate runs it at the module's root.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/lofamo/lofamo/internal/dashboards"
)

func main() {
	if err := run(filepath.Join("deploy", "grafana")); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// run also deletes the files of removed dashboards.
func run(dir string) error {
	files, err := dashboards.Files()
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if _, ok := files[filepath.Base(path)]; !ok {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
