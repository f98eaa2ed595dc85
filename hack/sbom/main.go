// Command sbom prints a CycloneDX bill of materials, in JSON, of one Go program: the modules that the linker recorded
// in it, with their versions and checksums. So it lists exactly the contents of the program, and needs neither the
// sources nor a network.
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: sbom PROGRAM VERSION")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(program, version string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("read build information of %s: %w", program, err)
	}
	name := filepath.Base(program)
	ref := purl(info.Main.Path, version) + "#" + strings.TrimPrefix(info.Path, info.Main.Path+"/")
	main := cdx.Component{BOMRef: ref, Type: cdx.ComponentTypeApplication, Name: name, Version: version, PackageURL: ref,
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}}
	std := purl("stdlib", strings.TrimPrefix(info.GoVersion, "go"))
	parts := []cdx.Component{{BOMRef: std, Type: cdx.ComponentTypeLibrary, Name: "stdlib", Version: info.GoVersion, PackageURL: std}}
	needs := []string{std}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c := cdx.Component{BOMRef: purl(m.Path, m.Version), Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version,
			PackageURL: purl(m.Path, m.Version)}
		if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) > 0 {
			c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
		}
		parts, needs = append(parts, c), append(needs, c.BOMRef)
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &main}
	bom.Components, bom.Dependencies = &parts, &[]cdx.Dependency{{Ref: ref, Dependencies: &needs}}
	return cdx.NewBOMEncoder(os.Stdout, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}

func purl(path, version string) string { return "pkg:golang/" + path + "@" + version }
