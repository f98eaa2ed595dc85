// Command generate writes what internal/configdoc makes. It is run at the module's root by make generate.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/lofamo/lofamo/internal/configdoc"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	files, err := configdoc.Files(root)
	if err != nil {
		return err
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
