// Decodes the JPEGs named in the arguments with Go's image/jpeg and writes the samples of their planes to FILE.go.
// A file that it does not decode is named, with the reason.
package main

import (
	"fmt"
	"image"
	"image/jpeg"
	"os"
)

func decode(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	decoded, err := jpeg.Decode(file)
	if err != nil {
		return err
	}
	bounds := decoded.Bounds()
	out := make([]byte, 0, 3*bounds.Dx()*bounds.Dy())
	for y := 0; y < bounds.Dy(); y++ {
		for x := 0; x < bounds.Dx(); x++ {
			switch picture := decoded.(type) {
			case *image.Gray:
				sample := picture.GrayAt(x, y).Y
				out = append(out, sample, sample, sample)
			case *image.YCbCr:
				sample := picture.YCbCrAt(x, y)
				out = append(out, sample.Y, sample.Cb, sample.Cr)
			default:
				return fmt.Errorf("a %T", decoded)
			}
		}
	}
	return os.WriteFile(name+".go", out, 0o600)
}

func main() {
	for _, name := range os.Args[1:] {
		if err := decode(name); err != nil {
			fmt.Fprintln(os.Stderr, name, err)
		}
	}
}
