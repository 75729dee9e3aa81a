import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;

/** `java Get.java connection|client URL FILE`: a download by either of the platform's HTTP clients. */
class Get {
    public static void main(String[] words) throws Exception {
        URI from = URI.create(words[1]);
        Path to = Path.of(words[2]);
        if (words[0].equals("client")) {
            HttpClient.newHttpClient().send(HttpRequest.newBuilder(from).build(), BodyHandlers.ofFile(to));
            return;
        }
        HttpURLConnection connection = (HttpURLConnection) from.toURL().openConnection();
        try (InputStream body = connection.getInputStream()) {
            Files.copy(body, to);
        }
    }
}
