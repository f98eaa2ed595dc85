package config

// maxDiskWarn bounds diskWarnBytes: 1 TiB.
const maxDiskWarn = 1 << 40

func (p *problems) diskWarn(bytes int64) {
	if bytes < 0 || bytes > maxDiskWarn {
		p.bad("diskWarnBytes", bytes, "0 to %d", int64(maxDiskWarn))
	}
}
