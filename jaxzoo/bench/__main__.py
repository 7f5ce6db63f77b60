from jaxzoo.cli.commands import enter

enter(__name__)
