// Command generate reads an image of the .proto files, as buf build writes it, from standard input and prints docs/api.md.
// It is run by make generate.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/lofamo/lofamo/internal/apidoc"
)

func main() {
	image, err := io.ReadAll(os.Stdin)
	if err == nil {
		var text string
		if text, err = apidoc.Page(image); err == nil {
			_, err = os.Stdout.WriteString(text)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}
